// SPDX-License-Identifier: Apache-2.0
// How an operation of the CPU device is dealt over its threads.
#pragma once

#include "ops/cpu_device.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

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

/// body(thread, job, first, last): panels [first, last) of a job, the jobs laid end to end and
/// dealt out by cost. A Job has num_panels, panel_cost and PanelUnit(), at multiples of which
/// shares begin.
template <class Job, class F>
void CpuDevice::ForEachShare(std::span<const Job> jobs, F&& body) {
  if (jobs.empty()) {
    return;
  }
  double total = 0;
  for (const Job& job : jobs) {
    total += job.panel_cost * static_cast<double>(job.num_panels);
  }
  const std::int64_t pieces = team_->size() == 1 ? 1 : team_->size() * kPiecesPerThread;
  const double part = total / static_cast<double>(pieces);
  const auto piece = [&](int thread, double low, double high) {
    double start = 0;
    for (const Job& job : jobs) {
      // The panels that begin in [low, high): both neighbours of a border compute the same one.
      const int unit = job.PanelUnit();
      const auto border = [&](double at) {
        const double units = std::ceil((at - start) / (job.panel_cost * unit));
        return static_cast<std::int64_t>(
            std::clamp(units * unit, 0.0, static_cast<double>(job.num_panels)));
      };
      if (const std::int64_t first = border(low), last = border(high); first < last) {
        body(thread, job, first, last);
      }
      start += job.panel_cost * static_cast<double>(job.num_panels);
    }
  };
  shares_.Deal(pieces);
  team_->Run([&](int thread) {
    for (std::int64_t p = shares_.Next(thread); p >= 0; p = shares_.Next(thread)) {
      piece(thread,
            part * static_cast<double>(p),
            p + 1 == pieces ? total + 1 : part * static_cast<double>(p + 1));
    }
  });
}

}  // namespace inferd::ops
