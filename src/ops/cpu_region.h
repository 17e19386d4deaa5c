// SPDX-License-Identifier: Apache-2.0
// How an operation of the CPU device is dealt over its threads.
#pragma once

#include "ops/cpu_device.h"

#include <algorithm>
#include <cstdint>

namespace inferd::ops {

/// Below this many values touched, a region's two barriers cost more than the second thread saves.
inline constexpr std::int64_t kInlineValues = 16384;

template <class F>
void CpuDevice::ForEach(std::int64_t count, std::int64_t work, F&& body) {
  if (work <= kInlineValues || team_->size() == 1 || count == 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      body(0, i);
    }
    return;
  }
  const std::int64_t pieces = std::min<std::int64_t>(count, team_->size() * kPiecesPerThread);
  shares_.Deal(pieces);
  team_->Run([&](int thread) {
    for (std::int64_t p = shares_.Next(thread); p >= 0; p = shares_.Next(thread)) {
      for (std::int64_t i = count * p / pieces; i < count * (p + 1) / pieces; ++i) {
        body(thread, i);
      }
    }
  });
}

}  // namespace inferd::ops
