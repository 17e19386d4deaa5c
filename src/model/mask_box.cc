// SPDX-License-Identifier: Apache-2.0
#include "model/mask_box.h"

#include "base/error.h"

#include <chrono>

namespace inferd::model {

void MaskBox::Reset(std::uint64_t generation) {
  const std::lock_guard lock(mutex_);
  masks_.clear();
  generation_ = generation;
  aborted_ = false;
  overfull_ = false;
}

void MaskBox::Give(spec::TokenMask mask) {
  {
    const std::lock_guard lock(mutex_);
    if (mask.generation != generation_) {
      return;
    }
    if (masks_.size() >= max_masks_) {
      overfull_ = true;
    } else {
      const std::pair key(mask.step, mask.row);
      masks_.insert_or_assign(key, std::move(mask));
    }
  }
  changed_.notify_all();
}

Result<spec::TokenMask> MaskBox::Take(std::int64_t step,
                                      std::int32_t row,
                                      std::int64_t deadline_ms) {
  const std::pair key(step, row);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(deadline_ms), [&] {
    return aborted_ || overfull_ || masks_.contains(key);
  });
  if (aborted_) {
    return Aborted("the wait for the token mask of row {} was aborted", row);
  }
  if (const auto found = masks_.find(key); found != masks_.end()) {
    spec::TokenMask mask = std::move(found->second);
    masks_.erase(found);
    return mask;
  }
  if (overfull_) {
    return Internal("more than {} token masks came that no step takes", max_masks_);
  }
  return DeadlineExceeded(
      "no token mask came for row {} in step {} within {} ms", row, step, deadline_ms);
}

void MaskBox::Abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  changed_.notify_all();
}

}  // namespace inferd::model
