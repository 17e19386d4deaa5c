// SPDX-License-Identifier: Apache-2.0
// StepSampler: which rows of a step need logits and what becomes of them: samples, checks of
// guesses, scores of prompt tokens. What the device can draw and score never brings its logits to
// the host, and where there is nothing else the host need not wait for it either.
#pragma once

#include "model/mask_box.h"
#include "model/row_table.h"
#include "model/sample_batch.h"
#include "model/shard.h"
#include "ops/device.h"
#include "spec/step.h"
#include "spec/token_mask.h"

#include <cstdint>
#include <span>
#include <vector>

namespace inferd::model {

struct StepSamplerOptions {
  std::int32_t group = 0;
  bool is_sampler = false;
  std::int64_t vocab = 0;
  std::int64_t max_model_len = 0;
};

/// Owned and called by the rank; what it refers to outlives it.
class StepSampler {
 public:
  StepSampler(Shard& shard,
              ops::Device& device,
              RowTable& rows,
              MaskBox& masks,
              StepSamplerOptions options);

  /// Device memory for samples; once, before the first step.
  Result<> Reserve();

  /// Of the work in the table, which is `batch`. Collective over tp. Waits for the device, and up
  /// to mask_deadline_ms for the masks of `step`. On the sampler fills result's samples and prompt
  /// scores, and gives the tokens to the table.
  Result<> Run(const StepBatch& batch,
               std::int64_t step,
               std::int64_t mask_deadline_ms,
               spec::StepResult* result);
  /// The tokens of the last Run in the order of RowTable::places.
  std::span<const std::int32_t> ids() const { return ids_; }

  /// True: whatever this work asks for, the device can be given before it has done anything of it.
  /// Depends on the request and the plan alone, so that all ranks of a group agree.
  static bool IsForDevice(const spec::RowWork& work,
                          const spec::SamplingParams& params,
                          bool constrained);
  /// As Run for such work, but does not wait: gives the samples to the device and tells the table
  /// that they are there. Collective over tp. result's samples lack their tokens.
  Result<> Queue(const StepBatch& batch, spec::StepResult* result);
  /// Once the step is done: its tokens, by place, to the table and to result's samples, with the
  /// scores that are asked for (null: this rank has none).
  void Take(std::span<const TokenPlace> places,
            std::span<const std::int32_t> tokens,
            const ops::TokenScore* scores,
            spec::StepResult* result);

 private:
  // A row of logits in this step and what it is for.
  struct LogitUse {
    std::int32_t batch_row = 0;
    std::int32_t row = 0;
    std::int64_t position = 0;  // of the token that the logits predict
    bool is_prompt = false;     // score the known token instead of sampling one
    std::int32_t guess = -1;    // sample only if the use before this one gave that; -1: anyhow
    bool constrained = false;   // sampled under `mask`
    spec::TokenMask mask;       // on the sampler, once it has come
    const std::int32_t* token = nullptr;     // on the sampler: drawn by the device, else
    const ops::TokenScore* score = nullptr;  // beside `token`, where it is asked for
    float* logits = nullptr;                 // [vocab], on the host
    spec::SampledToken* out = nullptr;       // on the sampler
  };

  void ListSamples(const spec::RowWork& work, std::int64_t first_row, spec::StepResult* result);
  void List(const StepBatch& batch, spec::StepResult* result);
  /// Uses [begin, end), as many as there are rows of logits at most.
  Result<> RunSome(std::size_t begin, std::size_t end, std::int64_t step, std::int64_t deadline_ms);
  bool IsOnDevice(const LogitUse& use) const;
  Result<> AwaitMasks(std::size_t begin, std::size_t end, std::int64_t step, std::int64_t ms);
  /// Queues the samples of the first `count` of order_, to the step's places from `at` on.
  Result<> SampleOnDevice(std::size_t begin, std::size_t count, std::size_t at);
  /// One of them; false: the batch is full.
  bool AddToBatch(std::size_t begin, std::size_t index);
  void UseAll(std::size_t begin, std::size_t end);
  void Use(std::size_t index);

  Shard& shard_;
  ops::Device& device_;
  RowTable& rows_;
  MaskBox& masks_;
  const StepSamplerOptions options_;
  SampleBatch batch_;

  std::vector<LogitUse> uses_;
  std::vector<std::size_t> chains_;  // the first of each run of uses that follow one another
  std::vector<std::size_t> order_;   // of the rows of logits: uses for the device first
  std::vector<std::int32_t> logit_rows_;
  std::vector<std::int32_t> guesses_;
  std::vector<std::int32_t> ids_;
};

}  // namespace inferd::model
