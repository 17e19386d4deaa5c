// SPDX-License-Identifier: Apache-2.0
// MaskBox: token masks on their way from the control stream to the sampler.
#pragma once

#include "inferd/result.h"
#include "spec/token_mask.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace inferd::model {

/// Thread-safe: the stream's reader gives, the sampler takes.
class MaskBox {
 public:
  /// Holds a few masks for each of `max_rows` rows; more than that is a fault of the leader.
  explicit MaskBox(std::size_t max_rows) : max_masks_(max_rows * kMasksPerRow) {}

  /// Forgets everything; from now on masks of `generation` are taken.
  void Reset(std::uint64_t generation);
  void Give(spec::TokenMask mask);
  /// Waits for the mask of (step, row). kDeadlineExceeded, kAborted after Abort, kInternal when too
  /// many came.
  Result<spec::TokenMask> Take(std::int64_t step, std::int32_t row, std::int64_t deadline_ms);
  /// Until the next Reset every Take fails.
  void Abort();

 private:
  /// Steps in flight are few; each samples a row at most once.
  static constexpr std::size_t kMasksPerRow = 64;

  const std::size_t max_masks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<std::int64_t, std::int32_t>, spec::TokenMask> masks_;
  std::uint64_t generation_ = 0;
  bool aborted_ = false;
  bool overfull_ = false;
};

}  // namespace inferd::model
