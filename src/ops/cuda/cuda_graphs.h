// SPDX-License-Identifier: Apache-2.0
// CUDA graphs of steps: one for each number of rows and each bound of their context that comes up.
// A shape's first step runs as always (kernels are loaded, attributes set), the second is recorded,
// the others are replayed. A graph holds addresses: whatever an operation reads must stay where it
// is.
#pragma once

#include "ops/tasks.h"

#include <cuda_runtime.h>

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

/// What the launches of a step depend on.
struct GraphShape {
  std::int64_t rows = 0;    // 0: no graph
  std::int64_t tokens = 0;  // bound of position + 1
  auto operator<=>(const GraphShape&) const = default;
};

/// Owned and called by the device, on its thread.
class CudaGraphs {
 public:
  CudaGraphs() = default;
  ~CudaGraphs();
  CudaGraphs(const CudaGraphs&) = delete;
  CudaGraphs& operator=(const CudaGraphs&) = delete;

  /// `sizes` ascending; no context is longer than max_tokens.
  void Configure(std::span<const std::int32_t> sizes, std::int64_t max_tokens);
  /// False: no sizes, or a recording has failed.
  bool records() const { return !sizes_.empty() && !stopped_; }
  /// Forgets all graphs, and which steps there were.
  void Clear();
  /// Clear; off: steps have no shape until the next Reset.
  void Reset(bool on) {
    Clear();
    on_ = on;
  }
  /// The shape to run a step with: the next size, and the next power of two of tokens.
  GraphShape ShapeOf(std::int64_t rows, std::int64_t tokens) const;

  /// The graph of `shape`, or null.
  cudaGraphExec_t Find(const GraphShape& shape) const;
  /// Counts a step of a shape without a graph. True: it is the one to record.
  bool IsTime(const GraphShape& shape);
  /// Keeps what was recorded. An error: there is no graph, and there will be no other.
  cudaError_t Add(const GraphShape& shape, cudaGraph_t graph);
  /// No more graphs; those that exist stay.
  void Stop() { stopped_ = true; }
  /// A recording was given up for another reason than its own: that may come again, but not for
  /// ever.
  void CountAbandoned();

  GraphCounts counts() const { return counts_; }
  void CountReplay() { ++counts_.replayed; }

 private:
  struct Entry {
    int steps = 0;
    cudaGraphExec_t exec = nullptr;
  };

  std::vector<std::int32_t> sizes_;
  std::int64_t max_tokens_ = 0;
  bool stopped_ = false;
  bool on_ = true;
  int abandoned_ = 0;  // since the last graph
  std::map<GraphShape, Entry> entries_;
  GraphCounts counts_;
};

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
