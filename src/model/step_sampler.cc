// SPDX-License-Identifier: Apache-2.0
#include "model/step_sampler.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace inferd::model {

StepSampler::StepSampler(
    Shard& shard, ops::Device& device, RowTable& rows, MaskBox& masks, StepSamplerOptions options)
    : shard_(shard),
      device_(device),
      rows_(rows),
      masks_(masks),
      options_(options),
      batch_(options.vocab, shard.max_logit_rows(), options.max_model_len) {}

Result<> StepSampler::Reserve() {
  return device_.Samples() ? shard_.ReserveSampling(batch_.limits()) : Result<>();
}

void StepSampler::ListSamples(const spec::RowWork& work,
                              std::int64_t first_row,
                              spec::StepResult* result) {
  const auto num_guessed = static_cast<std::int64_t>(work.draft.size());
  for (std::int64_t i = 0; i <= num_guessed; ++i) {
    const std::int64_t offset = work.count - num_guessed + i;
    LogitUse& use = uses_.emplace_back();
    use.batch_row = static_cast<std::int32_t>(first_row + offset - 1);
    use.row = work.row;
    use.position = work.start + offset;
    use.constrained = rows_.row(use.row).constrained;
    use.guess = i == 0 ? -1 : work.draft[static_cast<std::size_t>(i - 1)];
    spec::SampledToken& sampled = result->sampled.emplace_back();
    sampled.row = work.row;
    sampled.group = options_.group;
  }
}

// Sampled rows first: their ids are what the next step waits for.
void StepSampler::List(const StepBatch& batch, spec::StepResult* result) {
  uses_.clear();
  const auto work = rows_.work();
  for (std::size_t i = 0; i < work.size(); ++i) {
    if (work[i]->sample) {
      ListSamples(*work[i], batch.sequences[i].first_row, result);
    }
  }
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    uses_[i].out = &result->sampled[i];
  }
  for (std::size_t i = 0; i < work.size(); ++i) {
    const RowTable::Row& row = rows_.row(work[i]->row);
    const std::int64_t end = std::min(work[i]->start + work[i]->count, row.num_prompt - 1);
    if (row.params.prompt_logprobs < 0 || end <= work[i]->start) {
      continue;
    }
    spec::PromptLogprobs& scores = result->prompt_logprobs.emplace_back();
    scores.row = work[i]->row;
    scores.group = options_.group;
    scores.first = work[i]->start + 1;
    scores.tokens.resize(static_cast<std::size_t>(end - work[i]->start));
    for (std::int64_t p = work[i]->start; p < end; ++p) {
      const std::int64_t offset = p - work[i]->start;
      spec::SampledToken& out = scores.tokens[static_cast<std::size_t>(offset)];
      out.row = work[i]->row;
      out.group = options_.group;
      LogitUse& use = uses_.emplace_back();
      use.batch_row = static_cast<std::int32_t>(batch.sequences[i].first_row + offset);
      use.row = work[i]->row;
      use.position = p + 1;
      use.is_prompt = true;
      use.out = &out;
    }
  }
}

Result<> StepSampler::Run(const StepBatch& batch,
                          std::int64_t step,
                          std::int64_t mask_deadline_ms,
                          spec::StepResult* result) {
  List(batch, result);
  const auto at_once = static_cast<std::size_t>(shard_.max_logit_rows());
  for (std::size_t begin = 0; begin < uses_.size(); begin += at_once) {
    INFERD_TRY(RunSome(begin, std::min(uses_.size(), begin + at_once), step, mask_deadline_ms));
  }
  if (options_.is_sampler) {
    ids_.clear();
    for (const spec::SampledToken& sampled : result->sampled) {
      ids_.push_back(sampled.token);
    }
    std::erase_if(result->sampled,
                  [](const spec::SampledToken& sampled) { return sampled.token == kNoToken; });
  }
  return {};
}

bool StepSampler::IsOnDevice(const LogitUse& use) const {
  const spec::SamplingParams& params = rows_.row(use.row).params;
  return shard_.samples_on_device() &&
         (use.is_prompt ? params.prompt_logprobs <= ops::kMaxTop : SamplesOnDevice(params));
}

Result<> StepSampler::RunSome(std::size_t begin,
                              std::size_t end,
                              std::int64_t step,
                              std::int64_t deadline_ms) {
  order_.clear();
  for (std::size_t i = begin; i < end; ++i) {
    order_.push_back(i);
  }
  const auto host = std::stable_partition(
      order_.begin(), order_.end(), [&](std::size_t i) { return IsOnDevice(uses_[i]); });
  const auto num_device = static_cast<std::size_t>(host - order_.begin());
  logit_rows_.clear();
  for (const std::size_t i : order_) {
    logit_rows_.push_back(uses_[i].batch_row);
  }
  INFERD_TRY(shard_.StartLogits(logit_rows_));
  if (options_.is_sampler) {
    // While the device works on the logits, the leader makes the masks.
    INFERD_TRY(AwaitMasks(begin, end, step, deadline_ms));
    INFERD_TRY(SampleOnDevice(begin, num_device, 0));
  }
  INFERD_ASSIGN(float* const logits, shard_.FinishLogits(static_cast<std::int64_t>(num_device)));
  if (!options_.is_sampler) {
    return {};
  }
  for (std::size_t i = 0; i < order_.size(); ++i) {
    LogitUse& use = uses_[order_[i]];
    if (i < num_device) {
      use.token = shard_.sampled_tokens() + i;
      use.score = shard_.token_scores() + i;
    } else {
      use.logits = logits + (i - num_device) * static_cast<std::size_t>(options_.vocab);
    }
  }
  UseAll(begin, end);
  return {};
}

bool StepSampler::IsForDevice(const spec::RowWork& work,
                              const spec::SamplingParams& params,
                              bool constrained) {
  const bool samples_there = work.draft.empty() && !constrained && SamplesOnDevice(params);
  return !work.embed && params.prompt_logprobs < 0 && (!work.sample || samples_there);
}

Result<> StepSampler::Queue(const StepBatch& batch, spec::StepResult* result) {
  List(batch, result);
  if (uses_.empty()) {
    return {};
  }
  const auto at_once = static_cast<std::size_t>(shard_.max_logit_rows());
  for (std::size_t begin = 0; begin < uses_.size(); begin += at_once) {
    const std::size_t end = std::min(uses_.size(), begin + at_once);
    order_.clear();
    logit_rows_.clear();
    for (std::size_t i = begin; i < end; ++i) {
      order_.push_back(i);
      logit_rows_.push_back(uses_[i].batch_row);
    }
    INFERD_TRY(shard_.StartLogits(logit_rows_));
    if (options_.is_sampler) {
      INFERD_TRY(SampleOnDevice(begin, order_.size(), begin));
    }
  }
  INFERD_TRY(shard_.ShareTokens(static_cast<std::int64_t>(uses_.size())));
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    rows_.SetDrawn(rows_.places()[i], shard_.DrawnId(static_cast<std::int64_t>(i)));
  }
  return {};
}

void StepSampler::Take(std::span<const TokenPlace> places,
                       std::span<const std::int32_t> tokens,
                       const ops::TokenScore* scores,
                       spec::StepResult* result) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    result->sampled[i].token = tokens[i];
    if (places[i].scored && scores != nullptr) {
      TakeScore(scores[i], &result->sampled[i]);
    }
    rows_.SetToken(places[i], tokens[i]);
  }
}

Result<> StepSampler::AwaitMasks(std::size_t begin,
                                 std::size_t end,
                                 std::int64_t step,
                                 std::int64_t ms) {
  for (std::size_t i = begin; i < end; ++i) {
    if (uses_[i].constrained) {
      INFERD_ASSIGN(uses_[i].mask, masks_.Take(step, uses_[i].row, ms));
    }
  }
  return {};
}

bool StepSampler::AddToBatch(std::size_t begin, std::size_t index) {
  const LogitUse& use = uses_[index];
  const RowTable::Row& row = rows_.row(use.row);
  if (use.is_prompt) {
    return batch_.AddGiven(row.tokens[static_cast<std::size_t>(use.position)],
                           row.params.prompt_logprobs);
  }
  // Guesses that the row's state does not have yet; those before `begin` it has.
  guesses_.clear();
  for (std::size_t j = index; j > begin && uses_[j].guess >= 0; --j) {
    guesses_.insert(guesses_.begin(), uses_[j].guess);
  }
  return batch_.Add(row.sampling, guesses_, use.position, use.constrained ? &use.mask : nullptr);
}

Result<> StepSampler::SampleOnDevice(std::size_t begin, std::size_t count, std::size_t at) {
  batch_.Clear();
  std::size_t first = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!AddToBatch(begin, order_[i])) {
      shard_.SampleRows(
          static_cast<std::int64_t>(first), &batch_, static_cast<std::int64_t>(at + first));
      INFERD_TRY(device_.Wait());
      batch_.Clear();
      first = i;
      (void)AddToBatch(begin, order_[i]);
    }
  }
  if (batch_.rows() > 0) {
    shard_.SampleRows(
        static_cast<std::int64_t>(first), &batch_, static_cast<std::int64_t>(at + first));
  }
  return {};
}

// In parallel but for the samples after guesses, which follow one another on one thread.
void StepSampler::UseAll(std::size_t begin, std::size_t end) {
  chains_.clear();
  bool any_on_host = false;
  for (std::size_t i = begin; i < end; ++i) {
    if (i == begin || uses_[i].guess < 0) {
      chains_.push_back(i);
    }
    any_on_host = any_on_host || uses_[i].logits != nullptr;
  }
  struct Context {
    StepSampler* sampler;
    std::size_t end;
  } context{this, end};
  const auto use = [](void* opaque, std::int64_t index) {
    const Context& c = *static_cast<Context*>(opaque);
    const auto chain = static_cast<std::size_t>(index);
    const std::vector<std::size_t>& chains = c.sampler->chains_;
    const std::size_t chain_end = chain + 1 < chains.size() ? chains[chain + 1] : c.end;
    for (std::size_t i = chains[chain]; i < chain_end; ++i) {
      c.sampler->Use(i);
    }
  };
  if (chains_.size() > 1 && any_on_host) {
    device_.ParallelFor(static_cast<std::int64_t>(chains_.size()), &context, use);
  } else {
    for (std::size_t i = 0; i < chains_.size(); ++i) {
      use(&context, static_cast<std::int64_t>(i));
    }
  }
}

void StepSampler::Use(std::size_t index) {
  const LogitUse& use = uses_[index];
  const RowTable::Row& row = rows_.row(use.row);
  const std::span<float> logits(
      use.logits, use.logits != nullptr ? static_cast<std::size_t>(options_.vocab) : 0);
  if (use.is_prompt && use.score != nullptr) {
    TakeScore(*use.score, use.out);
    return;
  }
  if (use.is_prompt) {
    ScoreToken(logits,
               row.tokens[static_cast<std::size_t>(use.position)],
               row.params.prompt_logprobs,
               use.out);
    return;
  }
  if (use.guess >= 0 && uses_[index - 1].out->token != use.guess) {
    use.out->token = kNoToken;
    return;
  }
  if (use.token != nullptr && row.params.logprobs >= 0) {
    TakeScore(*use.score, use.out);
  } else if (use.token != nullptr) {
    use.out->token = *use.token;
  } else {
    SampleToken(logits, row.sampling, use.position, use.constrained ? &use.mask : nullptr, use.out);
  }
  // The samples come first in uses_, each at its place. Prompt tokens of the row that are scored
  // meanwhile lie before it.
  rows_.SetToken(rows_.places()[index], use.out->token);
}

}  // namespace inferd::model
