// SPDX-License-Identifier: Apache-2.0
// The next token of each row, on the device: mask, edits (bias, penalties), bans, then greedy or
// temperature, top_k, top_p, min_p and the draw, as model/sampler does it on the host in its usual
// order. Masses are added as integers of 2^-40, so a row's token depends on nothing but the row and
// its parameters. The host adds doubles: the two can part only where the random number falls within
// about 1e-6 of the mass of a boundary. Requests with typical_p, XTC, dynamic temperature or an
// order of their own are sampled on the host. Logprobs are those of the raw logits, as the host
// gives them (model/sampler's ScoreToken), bit for bit.
#pragma once

#include "kernels/cuda/stream.h"
#include "kernels/sampling/token_score.h"

#include <cstdint>

namespace inferd::kernels::cuda {

/// One change of one logit: x += add; x -= minus_first; x = x > 0 ? x / repetition : x *
/// repetition; x -= minus. At most one per row and token.
struct LogitEdit {
  std::int32_t row = 0;
  std::int32_t token = 0;
  float add = 0;          // logit_bias
  float minus_first = 0;  // DRY
  float repetition = 1;
  float minus = 0;   // presence and frequency
  float before = 0;  // written by the device: what is put back
};

inline constexpr int kMaxBans = 1024;

struct SamplingRow {
  std::uint64_t seed = 0;
  std::int64_t position = 0;
  double top_p = 1;
  float inverse_temperature = 0;  // 0: greedy
  float min_p_log = 0;            // log(min_p), used when has_min_p
  std::int32_t has_min_p = 0;
  std::int32_t top_k = 0;  // 0: all
  /// Bans of this row in `bans`, at most kMaxBans; they give way when nothing else is left.
  std::int32_t ban_begin = 0, ban_end = 0;
  std::int32_t is_given = 0;  // not drawn: the token is `given`
  std::int32_t given = 0;
  std::int32_t top = -1;  // so many of the best beside the token's score, at most kMaxTop; -1: none
};

struct SamplingArgs {
  float* logits = nullptr;  // [rows, vocab], rows ld apart; changed meanwhile by edits and bans
  std::int64_t ld = 0;
  std::int64_t rows = 0;
  std::int32_t vocab = 0;
  const std::uint32_t* mask = nullptr;     // [rows, mask_words] bits of allowed tokens, or null
  const std::uint8_t* has_mask = nullptr;  // [rows]; null: all rows, where there is a mask
  std::int32_t mask_words = 0;
  LogitEdit* edits = nullptr;
  std::int64_t num_edits = 0;
  const std::int32_t* bans = nullptr;
  const SamplingRow* params = nullptr;  // [rows]
  /// [rows]; -1: the row holds NaN or an infinity, nothing is allowed, or the given token is none.
  std::int32_t* token = nullptr;
  TokenScore* scores = nullptr;  // [rows], for Score
};
/// Fills `token`.
Status Sample(const SamplingArgs& args, Stream stream);
/// Fills the scores of `token` where a row asks for one; of others nothing, and where there is no
/// token only that. Reads of args nothing that says how to draw.
Status Score(const SamplingArgs& args, Stream stream);

}  // namespace inferd::kernels::cuda
