// SPDX-License-Identifier: Apache-2.0
// What a CUDA device keeps of the steps it is given: where their rows go, and how far they are.
#pragma once

#include "kernels/attention/kv_cuda.h"
#include "ops/cuda/cuda_graphs.h"
#include "ops/memory.h"
#include "ops/tasks.h"

#include <cuda_runtime.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

/// Consecutive sequences of a step that the same attention kernel takes.
struct AttentionRun {
  bool tiles = false;
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::int64_t first_sequence = 0;
  std::int64_t num_sequences = 0;
  std::int64_t longest = 0;  // most rows of a sequence
  std::int64_t tokens = 0;   // bound of position + 1
};

/// Where steps put their rows: the same places for all of them, since graphs hold the addresses.
struct StepPlaces {
  std::int64_t line = 0;       // ints between two lists of rows
  std::int64_t max_pages = 0;  // ints between two page tables
  // [4, line]: positions, ids, sequence of, first row of a sequence. The host's take turns: what
  // one step is copied from stays while the next one is filled in.
  std::array<Memory, 2> host;
  Memory device;
  std::array<Memory, 2> host_pages;  // [sequences, max_pages]
  Memory device_pages;

  static std::int32_t* Ints(const Memory& memory) {
    return reinterpret_cast<std::int32_t*>(memory.data());
  }
};

/// The rows of a step on the device.
struct Step {
  StepRows host;         // as given, to see that operations name the same
  std::size_t turn = 0;  // whose host memory it has
  kernels::cuda::StepRows rows;
  const std::int32_t* ids = nullptr;        // [rows]
  const std::int32_t* row_begin = nullptr;  // [sequences + 1]
  std::vector<AttentionRun> runs;
  GraphShape shape;  // rows 0: not for a graph
};

/// Steps are numbered from 1.
struct StepsUnderWay {
  static constexpr int kMost = 2;
  std::uint64_t begun = 0;             // the last
  std::uint64_t done = 0;              // the last that was waited for
  std::array<cudaEvent_t, 2> ended{};  // behind step n: [n % 2]
  std::uint64_t looked_at = 0;
  std::chrono::steady_clock::time_point first_look;
};

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
