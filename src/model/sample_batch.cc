// SPDX-License-Identifier: Apache-2.0
#include "model/sample_batch.h"

#include "model/repetition.h"
#include "model/sampler_chain.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace inferd::model {
namespace {

// Keeps of `words` only what `mask` allows.
void Restrict(const spec::TokenMask& mask, std::int64_t vocab, std::span<std::uint32_t> words) {
  using Kind = spec::TokenMask::Kind;
  const auto inside = [&](std::int32_t token) { return token >= 0 && token < vocab; };
  const auto word = [&](std::int32_t token) -> std::uint32_t& {
    return words[static_cast<std::size_t>(token) / 32];
  };
  const auto bit = [](std::int32_t token) { return 1U << (token % 32); };
  switch (mask.kind) {
    case Kind::kAll:
      return;
    case Kind::kAllBut:
      for (const std::int32_t token : mask.tokens) {
        if (inside(token)) {
          word(token) &= ~bit(token);
        }
      }
      return;
    case Kind::kOnly: {
      const std::vector<std::uint32_t> before(words.begin(), words.end());
      std::fill(words.begin(), words.end(), 0U);
      for (const std::int32_t token : mask.tokens) {
        if (inside(token)) {
          word(token) |= before[static_cast<std::size_t>(token) / 32] & bit(token);
        }
      }
      return;
    }
    case Kind::kBits:
      for (std::size_t i = 0; i < words.size(); ++i) {
        words[i] &= i < mask.bits.size() ? mask.bits[i] : 0U;
      }
      return;
  }
}

}  // namespace

bool SamplesOnDevice(const spec::SamplingParams& params) {
  return params.logprobs <= ops::kMaxTop && !UsesChain(params) &&
         params.bad_words.size() + params.end_tokens.size() <=
             static_cast<std::size_t>(ops::kMaxBansOfRow);
}

void TakeScore(const ops::TokenScore& score, spec::SampledToken* out) {
  out->token = score.token;
  if (score.token < 0) {
    return;
  }
  const double log_sum = static_cast<double>(score.peak) + std::log(score.sum_exp);
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - log_sum);
  };
  out->logprob = logprob(score.logit);
  out->rank = score.rank;
  out->top.clear();
  for (std::int32_t i = 0; i < ops::kMaxTop && score.top[i] >= 0; ++i) {
    out->top.push_back({score.top[i], logprob(score.top_logits[i])});
  }
}

SampleBatch::SampleBatch(std::int64_t vocab, std::int64_t max_rows, std::int64_t max_model_len)
    : limits_{.rows = max_rows,
              .vocab = vocab,
              // Beside the tokens seen, a bias may name any.
              .edits = std::min(vocab, max_model_len + 4096),
              .bans = std::max<std::int64_t>(ops::kMaxBansOfRow, 32 * max_rows)},
      edit_of_token_(static_cast<std::size_t>(vocab), -1) {}

void SampleBatch::Clear() {
  rows_.clear();
  any_scored_ = false;
  edits_.clear();
  bans_.clear();
  masks_.clear();
}

ops::LogitEdit& SampleBatch::EditOf(std::int32_t token) {
  std::int32_t& index = edit_of_token_[static_cast<std::size_t>(token)];
  if (index < 0) {
    index = static_cast<std::int32_t>(edits_.size());
    ops::LogitEdit& edit = edits_.emplace_back();
    edit.row = static_cast<std::int32_t>(rows_.size());
    edit.token = token;
  }
  return edits_[static_cast<std::size_t>(index)];
}

void SampleBatch::ListEdits(const SamplingState& state) {
  const spec::SamplingParams& params = state.params();
  const auto inside = [&](std::int32_t token) { return token >= 0 && token < limits_.vocab; };
  for (const auto& [token, bias] : params.logit_bias) {
    if (inside(token)) {
      EditOf(token).add += bias;
    }
  }
  if (params.dry_multiplier > 0) {
    repetitions_.clear();
    ListRepetitions(state.history(), params, &repetitions_);
    for (const auto& [token, penalty] : repetitions_) {
      if (inside(token)) {
        EditOf(token).minus_first += penalty;
      }
    }
  }
  for (const auto& [token, use] : state.used()) {
    if (inside(token)) {
      ops::LogitEdit& edit = EditOf(token);
      edit.repetition = static_cast<float>(params.repetition_penalty);
      edit.minus =
          use.outputs > 0
              ? static_cast<float>(params.presence_penalty + params.frequency_penalty * use.outputs)
              : 0.0F;
    }
  }
  for (std::size_t i = first_edit_; i < edits_.size(); ++i) {
    edit_of_token_[static_cast<std::size_t>(edits_[i].token)] = -1;
  }
}

void SampleBatch::ListMask(const spec::SamplingParams& params, const spec::TokenMask* mask) {
  const std::size_t words = spec::MaskWords(limits_.vocab);
  const std::size_t begin = rows_.size() * words;
  masks_.resize(begin + words, ~0U);  // rows before this one may have had none
  const std::span<std::uint32_t> mine = std::span(masks_).subspan(begin, words);
  if (mask != nullptr) {
    Restrict(*mask, limits_.vocab, mine);
  }
  if (!params.allowed_tokens.empty()) {
    spec::TokenMask allowed;
    allowed.kind = spec::TokenMask::Kind::kOnly;
    allowed.tokens = params.allowed_tokens;
    Restrict(allowed, limits_.vocab, mine);
  }
}

bool SampleBatch::Add(const SamplingState& state,
                      std::span<const std::int32_t> guesses,
                      std::int64_t position,
                      const spec::TokenMask* mask) {
  if (!guesses.empty() && state.remembers()) {
    // As if they were right: otherwise this sample is not wanted.
    SamplingState later = state;
    for (const std::int32_t guess : guesses) {
      later.AddOutput(guess);
    }
    return Add(later, {}, position, mask);
  }
  const spec::SamplingParams& params = state.params();
  first_edit_ = edits_.size();
  const std::size_t first_ban = bans_.size();
  ListEdits(state);
  state.ListBans(position, &row_bans_);
  bans_.insert(bans_.end(), row_bans_.begin(), row_bans_.end());
  const bool fits = rows() < limits_.rows &&
                    static_cast<std::int64_t>(edits_.size()) <= limits_.edits &&
                    static_cast<std::int64_t>(bans_.size()) <= limits_.bans;
  if (!fits && !rows_.empty()) {
    edits_.resize(first_edit_);
    bans_.resize(first_ban);
    return false;
  }
  ops::SampleRow row;
  row.seed = params.seed;
  row.position = position;
  row.top_p = params.top_p;
  row.inverse_temperature =
      params.temperature < kGreedyTemperature ? 0.0F : static_cast<float>(1 / params.temperature);
  row.has_min_p = params.min_p > 0;
  row.min_p_log = row.has_min_p ? static_cast<float>(std::log(params.min_p)) : 0.0F;
  row.top_k = std::max(params.top_k, 0);
  row.ban_begin = static_cast<std::int32_t>(first_ban);
  row.ban_end = static_cast<std::int32_t>(bans_.size());
  row.has_mask = !params.allowed_tokens.empty() ||
                 (mask != nullptr && mask->kind != spec::TokenMask::Kind::kAll);
  if (row.has_mask) {
    ListMask(params, mask);
  }
  row.top = params.logprobs;
  any_scored_ = any_scored_ || row.top >= 0;
  rows_.push_back(row);
  return true;
}

bool SampleBatch::AddGiven(std::int32_t token, std::int32_t top) {
  if (rows() >= limits_.rows) {
    return false;
  }
  ops::SampleRow& row = rows_.emplace_back();
  row.is_given = true;
  row.given = token;
  row.top = top;
  any_scored_ = true;
  return true;
}

ops::SampleTask SampleBatch::Task(float* logits, std::int32_t* tokens, ops::TokenScore* scores) {
  if (!masks_.empty()) {
    masks_.resize(rows_.size() * spec::MaskWords(limits_.vocab), ~0U);
  }
  ops::SampleTask task;
  task.logits = logits;
  task.vocab = limits_.vocab;
  task.rows = rows_;
  task.edits = edits_;
  task.bans = bans_;
  task.masks = masks_;
  task.tokens = tokens;
  task.scores = any_scored_ ? scores : nullptr;
  return task;
}

}  // namespace inferd::model
