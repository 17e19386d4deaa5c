// SPDX-License-Identifier: Apache-2.0
// SampleBatch: what a device's sampler needs, from the sampling states of the rows of a step.
#pragma once

#include "model/sampler.h"
#include "ops/sampling.h"
#include "spec/step.h"
#include "spec/token_mask.h"

#include <cstdint>
#include <span>
#include <vector>

namespace inferd::model {

/// True when a device samples such a request as SampleToken does; it asks for at most kMaxTop
/// logprobs and for nothing that only the chain of samplers does. Depends on the request alone, so
/// that all ranks of a group agree and a replay samples where the first run did.
bool SamplesOnDevice(const spec::SamplingParams& params);

/// Fills token, logprob, rank and top of `out` as ScoreToken does.
void TakeScore(const ops::TokenScore& score, spec::SampledToken* out);

/// Refilled for every call of Device::Sample; keeps its memory. One thread.
class SampleBatch {
 public:
  SampleBatch(std::int64_t vocab, std::int64_t max_rows, std::int64_t max_model_len);

  /// For Device::ReserveSampling: one row may have edits of every token it has seen.
  const ops::SampleLimits& limits() const { return limits_; }

  void Clear();
  std::int64_t rows() const { return static_cast<std::int64_t>(rows_.size()); }
  /// The row of `state` at `position`; `mask` null: none. `guesses` follow the state's tokens.
  /// False, and nothing is added: the limits are reached, and there are other rows.
  bool Add(const SamplingState& state,
           std::span<const std::int32_t> guesses,
           std::int64_t position,
           const spec::TokenMask* mask);
  /// A row whose `token` is known and scored, with the `top` best. False: as Add.
  bool AddGiven(std::int32_t token, std::int32_t top);
  /// Valid until the next Clear. Pointers are the caller's, [rows].
  ops::SampleTask Task(float* logits, std::int32_t* tokens, ops::TokenScore* scores);

 private:
  void ListEdits(const SamplingState& state);
  void ListMask(const spec::SamplingParams& params, const spec::TokenMask* mask);
  ops::LogitEdit& EditOf(std::int32_t token);

  const ops::SampleLimits limits_;
  std::vector<ops::SampleRow> rows_;
  bool any_scored_ = false;
  std::vector<ops::LogitEdit> edits_;
  std::vector<std::int32_t> bans_;
  std::vector<std::uint32_t> masks_;
  std::size_t first_edit_ = 0;               // of the row that is being added
  std::vector<std::int32_t> edit_of_token_;  // [vocab]: index in edits_, or -1
  std::vector<std::int32_t> row_bans_;
  std::vector<std::pair<std::int32_t, float>> repetitions_;
};

}  // namespace inferd::model
