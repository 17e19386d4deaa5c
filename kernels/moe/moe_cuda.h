// SPDX-License-Identifier: Apache-2.0
// A mixture of experts on the device: route, sort the (row, slot) pairs by expert (contiguous) or
// list them by expert (masked), [GroupedMatMul gate and up, GateMul, GroupedMatMul down], combine.
#pragma once

#include "kernels/cuda/stream.h"

#include <cstdint>

namespace inferd::kernels::cuda {

struct RouteArgs {
  const float* logits = nullptr;  // [rows, experts]
  std::int64_t rows = 0;
  int experts = 0;       // at most 1024
  int top_k = 0;         // at most 32
  bool sigmoid = false;  // scores are sigmoids, else a softmax
  bool softmax_before_topk = false;
  bool renormalize = false;
  float routed_scale = 1;
  const float* bias = nullptr;  // [experts] or null; added to the scores for the choice only
  /// Experts are in runs of experts / groups, of which only the top_groups best are looked at; a
  /// group is as good as the sum of its group_best (1 or 2) best experts. At most 32.
  int groups = 1, top_groups = 1, group_best = 1;
  std::int32_t* expert = nullptr;  // [rows, top_k], best first; ties: the lower index
  float* weight = nullptr;         // [rows, top_k]
};
Status Route(const RouteArgs& args, Stream stream);

/// Sorts pairs by expert, in ascending pair order within an expert, so the result is always the
/// same. Experts of other ranks (outside [first, first + experts)) are left out.
struct SortPairsArgs {
  const std::int32_t* expert = nullptr;  // [pairs], global ids or -1
  std::int64_t pairs = 0;                // rows * top_k
  int first = 0;
  int experts = 0;  // local, at most 1024
  int top_k = 1;
  std::int32_t* expert_begin = nullptr;  // [experts + 1]
  std::int32_t* source = nullptr;        // [pairs]: position -> row (pair / top_k)
  std::int32_t* position = nullptr;      // [pairs]: pair -> position, or -1
};
Status SortPairs(const SortPairsArgs& args, Stream stream);

/// The same pairs for the steps of decoding: only the experts that have any, each with a list of
/// its own and a count, so that no running sums are needed and the products' launch covers the
/// experts in use, not all. A slot is an expert that has pairs, in the order of its first one;
/// there are at most Slots of them, and the rest have the count 0. A pair's place in the products'
/// outputs is its own number.
struct MaskPairsArgs {
  static constexpr std::int64_t kMostPairs = 256;
  const std::int32_t* expert = nullptr;  // [pairs], global ids or -1
  std::int64_t pairs = 0;                // rows * top_k, at most kMostPairs
  int first = 0;
  int experts = 0;  // local
  int top_k = 1;
  std::int32_t* slot_expert = nullptr;  // [slots] local expert; 0 in those without pairs
  std::int32_t* slot_count = nullptr;   // [slots]
  std::int32_t* pair = nullptr;         // [slots, pairs]: the slot's pairs, ascending
  std::int32_t* source = nullptr;       // [slots, pairs]: the row of each (pair / top_k)
  std::int32_t* position = nullptr;     // [pairs]: pair -> pair, or -1

  int Slots() const { return static_cast<int>(pairs < experts ? pairs : experts); }
};
/// One launch of one block.
Status MaskPairs(const MaskPairsArgs& args, Stream stream);

/// y[row] (+)= sum over slots, ascending, of weight[row, slot] * out[position[row, slot]]; slots
/// with position -1 add nothing.
struct CombineArgs {
  const float* out = nullptr;  // [pairs, hidden] by position
  std::int64_t ldout = 0;
  const std::int32_t* position = nullptr;  // [rows, top_k]
  const float* weight = nullptr;           // [rows, top_k]
  std::int64_t rows = 0;
  int top_k = 0;
  std::int64_t hidden = 0;
  bool add = false;
  float* y = nullptr;
  std::int64_t ldy = 0;
};
Status Combine(const CombineArgs& args, Stream stream);

}  // namespace inferd::kernels::cuda
