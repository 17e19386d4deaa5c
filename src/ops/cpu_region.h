// SPDX-License-Identifier: Apache-2.0
// How an operation of the CPU device is dealt over its threads.
#pragma once

#include "ops/cpu_device.h"

#include <cstdint>
#include <utility>

namespace inferd::ops {

/// Below this many values touched, a region's two barriers cost more than the second thread saves.
inline constexpr std::int64_t kInlineValues = 16384;

/// Items [first, second) of `total` that thread `id` of `threads` takes.
inline std::pair<std::int64_t, std::int64_t> Share(std::int64_t total, int id, int threads) {
  return {total * id / threads, total * (id + 1) / threads};
}

template <class F>
void CpuDevice::ForEach(std::int64_t count, std::int64_t work, F&& body) {
  if (work <= kInlineValues || team_->size() == 1 || count == 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      body(0, i);
    }
    return;
  }
  team_->Run([&](int thread) {
    const auto [first, last] = Share(count, thread, team_->size());
    for (std::int64_t i = first; i < last; ++i) {
      body(thread, i);
    }
  });
}

}  // namespace inferd::ops
