// SPDX-License-Identifier: Apache-2.0
// What a device's sampler takes: numbers per row, made from a request's parameters by `model`.
#pragma once

#include "kernels/sampling/token_score.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace inferd::ops {

using kernels::kMaxTop;
using kernels::TokenScore;

/// One change of one logit: x += add; x -= minus_first; x = x > 0 ? x / repetition : x *
/// repetition; x -= minus. At most one per row and token.
struct LogitEdit {
  std::int32_t row = 0;  // of the task
  std::int32_t token = 0;
  float add = 0;          // logit_bias
  float minus_first = 0;  // DRY
  float repetition = 1;
  float minus = 0;  // presence and frequency
};

/// More bans of a row than this cannot be given.
inline constexpr std::int32_t kMaxBansOfRow = 1024;

struct SampleRow {
  std::uint64_t seed = 0;
  std::int64_t position = 0;  // with seed: the random number
  double top_p = 1;
  float inverse_temperature = 0;  // 0: greedy
  float min_p_log = 0;            // log(min_p)
  bool has_min_p = false;
  bool has_mask = false;
  std::int32_t top_k = 0;                   // 0: all
  std::int32_t ban_begin = 0, ban_end = 0;  // in SampleTask::bans; they give way to nothing else
  bool is_given = false;                    // the token is `given`, and nothing else is looked at
  std::int32_t given = 0;
  std::int32_t top = -1;  // scored, with so many of the best, at most kMaxTop; -1: not scored
};

/// Rows of logits that follow one another.
struct SampleTask {
  float* logits = nullptr;  // device, [rows, vocab]
  std::int64_t vocab = 0;
  std::span<const SampleRow> rows;
  std::span<const LogitEdit> edits;
  std::span<const std::int32_t> bans;
  /// Bits of the allowed tokens, [rows, spec::MaskWords(vocab)]; read where has_mask, empty:
  /// nowhere.
  std::span<const std::uint32_t> masks;
  /// Device memory, [rows]. -1: nothing is allowed, or the row of a token that is not given holds
  /// NaN or an infinity.
  std::int32_t* tokens = nullptr;
  /// Pinned host memory, [rows], there after the next wait: of the raw logits, for the rows with
  /// `top`; null: none has it.
  TokenScore* scores = nullptr;
};

/// The most that a task holds.
struct SampleLimits {
  std::int64_t tasks = 1;  // in a step, between two waits
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
  std::int64_t edits = 0;
  std::int64_t bans = 0;
};

}  // namespace inferd::ops
