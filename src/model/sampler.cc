// SPDX-License-Identifier: Apache-2.0
#include "model/sampler.h"

#include "model/logits.h"
#include "model/repetition.h"
#include "model/sampler_chain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace inferd::model {
namespace {

// In place of the logit of a token that is not allowed: below every real one, and finite, so that
// the passes over the row need no special case. Its weight is 0 at every temperature.
constexpr float kNotAllowed = -1e30F;
constexpr float kLowestAllowed = -1e29F;

// splitmix64's finaliser: every input bit reaches every output bit.
std::uint64_t Mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Changes single logits and puts the old values back at the end.
class Edits {
 public:
  explicit Edits(std::span<float> logits) : logits_(logits) {}
  Edits(const Edits&) = delete;
  Edits& operator=(const Edits&) = delete;
  ~Edits() { Undo(); }

  void Undo() {
    for (auto it = old_.rbegin(); it != old_.rend(); ++it) {
      logits_[static_cast<std::size_t>(it->first)] = it->second;
    }
    old_.clear();
  }

  template <class Change>
  void Apply(std::int32_t token, Change change) {
    if (token < 0 || static_cast<std::size_t>(token) >= logits_.size()) {
      return;
    }
    float& logit = logits_[static_cast<std::size_t>(token)];
    old_.emplace_back(token, logit);
    logit = change(logit);
  }
  bool empty() const { return old_.empty(); }

 private:
  std::span<float> logits_;
  std::vector<std::pair<std::int32_t, float>> old_;
};

// Overwrites in `out`, a copy of `logits`, what is not in `tokens`.
void KeepOnly(std::span<const float> logits,
              std::span<const std::int32_t> tokens,
              std::span<float> out) {
  std::fill(out.begin(), out.end(), kNotAllowed);
  for (const std::int32_t token : tokens) {
    if (token >= 0 && static_cast<std::size_t>(token) < out.size()) {
      out[static_cast<std::size_t>(token)] = logits[static_cast<std::size_t>(token)];
    }
  }
}

void ApplyMask(const spec::TokenMask& mask, std::span<const float> logits, std::span<float> out) {
  switch (mask.kind) {
    case spec::TokenMask::Kind::kAll:
      return;
    case spec::TokenMask::Kind::kOnly:
      KeepOnly(logits, mask.tokens, out);
      return;
    case spec::TokenMask::Kind::kAllBut:
      for (const std::int32_t token : mask.tokens) {
        if (token >= 0 && static_cast<std::size_t>(token) < out.size()) {
          out[static_cast<std::size_t>(token)] = kNotAllowed;
        }
      }
      return;
    case spec::TokenMask::Kind::kBits:
      for (std::size_t i = 0; i < out.size(); ++i) {
        const std::size_t word = i / 32;
        const bool allowed = word < mask.bits.size() && (mask.bits[word] >> (i % 32) & 1) != 0;
        out[i] = allowed ? out[i] : kNotAllowed;
      }
      return;
  }
}

// The row to sample from: `logits` itself, or a copy in which only what is allowed is left.
std::span<float> AllowedLogits(std::span<float> logits,
                               const spec::SamplingParams& params,
                               const spec::TokenMask* mask) {
  const bool masked = mask != nullptr && mask->kind != spec::TokenMask::Kind::kAll;
  if (!masked && params.allowed_tokens.empty()) {
    return logits;
  }
  thread_local std::vector<float> copy;
  copy.assign(logits.begin(), logits.end());
  if (masked) {
    ApplyMask(*mask, logits, copy);
  }
  if (!params.allowed_tokens.empty()) {
    const std::vector<float> before = copy;
    KeepOnly(before, params.allowed_tokens, copy);
  }
  return copy;
}

void ApplyParams(const SamplingState& state, Edits& edits) {
  const spec::SamplingParams& params = state.params();
  for (const auto& [token, bias] : params.logit_bias) {
    edits.Apply(token, [bias = bias](float x) { return x + bias; });
  }
  if (params.dry_multiplier > 0) {
    thread_local std::vector<std::pair<std::int32_t, float>> repetitions;
    repetitions.clear();
    ListRepetitions(state.history(), params, &repetitions);
    for (const auto& [token, penalty] : repetitions) {
      edits.Apply(token, [penalty = penalty](float x) { return x - penalty; });
    }
  }
  if (!state.penalises()) {
    return;
  }
  const auto repetition = static_cast<float>(params.repetition_penalty);
  for (const auto& [token, use] : state.used()) {
    float minus = 0;
    if (use.outputs > 0) {
      minus = static_cast<float>(params.presence_penalty + params.frequency_penalty * use.outputs);
    }
    edits.Apply(token, [repetition, minus](float x) {
      return (x > 0 ? x / repetition : x * repetition) - minus;
    });
  }
}

// Candidates that survive top_k, top_p and min_p, in descending order.
void Restrict(std::span<const float> logits,
              const spec::SamplingParams& params,
              float peak,
              float inverse_temperature,
              std::vector<Candidate>& kept) {
  const bool by_count = params.top_k > 0 && static_cast<std::size_t>(params.top_k) < logits.size();
  const auto count = static_cast<std::size_t>(std::max(params.top_k, 0));
  const bool by_mass = params.top_p < 1;
  const float floor = params.min_p > 0 ? static_cast<float>(std::log(params.min_p))
                                       : -std::numeric_limits<float>::infinity();
  const double total = by_mass && !by_count ? SumExp(logits, peak, inverse_temperature) : 0;
  // Few tokens carry nearly all mass: look near the peak first and widen only while that is not
  // enough.
  for (float cutoff = -6;; cutoff *= 2) {
    const bool everything = cutoff < -128;
    cutoff = everything ? -std::numeric_limits<float>::infinity() : cutoff;
    const float wanted = by_count ? cutoff : std::max(cutoff, floor);
    Collect(logits, peak, inverse_temperature, wanted, kept);
    if (everything || (!by_count && wanted == floor) || (by_count && kept.size() >= count)) {
      break;
    }
    if (by_mass && !by_count) {
      double mass = 0;
      for (const Candidate& candidate : kept) {
        mass += static_cast<double>(ExpOf(candidate.z));
      }
      if (mass >= params.top_p * total) {
        break;
      }
    }
  }
  if (by_count && kept.size() > count) {
    std::nth_element(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(count), kept.end());
    kept.resize(count);
  }
  std::sort(kept.begin(), kept.end());
  double mass_of_all = total;
  if (by_mass && by_count) {
    for (const Candidate& candidate : kept) {
      mass_of_all += static_cast<double>(ExpOf(candidate.z));
    }
  }
  std::size_t keep = 0;
  for (double before = 0; keep < kept.size(); ++keep) {
    const bool beyond_mass = by_mass && before >= params.top_p * mass_of_all;
    if (keep > 0 && (beyond_mass || kept[keep].z < floor)) {
      break;
    }
    before += static_cast<double>(ExpOf(kept[keep].z));
  }
  kept.resize(keep);
}

std::int32_t Draw(std::span<const float> logits,
                  const spec::SamplingParams& params,
                  float peak,
                  std::int64_t position) {
  const auto inverse_temperature = static_cast<float>(1 / params.temperature);
  const double random = RandomAt(params.seed, position);
  const bool restricted =
      (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < logits.size()) ||
      params.top_p < 1 || params.min_p > 0;
  if (!restricted) {
    const double total = SumExp(logits, peak, inverse_temperature);
    return TokenAtMass(logits, peak, inverse_temperature, random * total);
  }
  thread_local std::vector<Candidate> kept;
  Restrict(logits, params, peak, inverse_temperature, kept);
  double total = 0;
  for (const Candidate& candidate : kept) {
    total += static_cast<double>(ExpOf(candidate.z));
  }
  double sum = 0;
  for (const Candidate& candidate : kept) {
    sum += static_cast<double>(ExpOf(candidate.z));
    if (sum > random * total) {
      return candidate.token;
    }
  }
  return kept.front().token;
}

// The token, from logits that are final but for the bans; -1 if there is none.
std::int32_t Pick(const SamplingState& state,
                  std::span<float> logits,
                  Peak peak,
                  std::int64_t position) {
  const spec::SamplingParams& params = state.params();
  thread_local std::vector<std::int32_t> bans;
  state.ListBans(position, &bans);
  Edits edits(logits);
  for (const std::int32_t token : bans) {
    edits.Apply(token, [](float) { return kNotAllowed; });
  }
  if (!edits.empty()) {
    const Peak left = FindPeak(logits);
    if (left.token >= 0 && left.value < kLowestAllowed) {
      edits.Undo();  // Nothing else may come: the bans give way.
    } else {
      peak = left;
    }
  }
  if (peak.token < 0 || peak.value < kLowestAllowed) {
    return -1;
  }
  if (params.temperature < kGreedyTemperature) {
    return peak.token;
  }
  return UsesChain(params) ? DrawFromChain(logits, params, peak.value, kLowestAllowed, position)
                           : Draw(logits, params, peak.value, position);
}

double LogSum(std::span<const float> logits, float peak) {
  return static_cast<double>(peak) + std::log(SumExp(logits, peak, 1.0F));
}

}  // namespace

SamplingState::SamplingState(const spec::SamplingParams& params,
                             std::span<const std::int32_t> tokens,
                             std::int64_t num_prompt)
    : params_(params),
      penalises_(params.repetition_penalty != 1 || params.presence_penalty != 0 ||
                 params.frequency_penalty != 0),
      num_prompt_(num_prompt) {
  if (!params.bad_words.empty()) {
    outputs_.assign(tokens.begin() + num_prompt, tokens.end());
  }
  if (params.dry_multiplier > 0) {
    history_.assign(tokens.begin(), tokens.end());
  }
  if (!penalises_) {
    return;
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (static_cast<std::int64_t>(i) < num_prompt) {
      used_[tokens[i]].in_prompt = true;
    } else {
      ++used_[tokens[i]].outputs;
    }
  }
}

void SamplingState::AddOutput(std::int32_t token) {
  if (!params_.bad_words.empty()) {
    outputs_.push_back(token);
  }
  if (params_.dry_multiplier > 0) {
    history_.push_back(token);
  }
  if (penalises_ && token >= 0) {
    ++used_[token].outputs;
  }
}

void SamplingState::ListBans(std::int64_t position, std::vector<std::int32_t>* bans) const {
  bans->clear();
  if (position - num_prompt_ < params_.min_tokens) {
    bans->insert(bans->end(), params_.end_tokens.begin(), params_.end_tokens.end());
  }
  for (const std::vector<std::int32_t>& word : params_.bad_words) {
    const auto before = static_cast<std::ptrdiff_t>(word.size()) - 1;
    if (before >= 0 && before <= static_cast<std::ptrdiff_t>(outputs_.size()) &&
        std::equal(word.begin(), word.end() - 1, outputs_.end() - before)) {
      bans->push_back(word.back());
    }
  }
}

double RandomAt(std::uint64_t seed, std::int64_t position) {
  const std::uint64_t bits =
      Mix(Mix(seed) ^ Mix(static_cast<std::uint64_t>(position) * 0xD1342543DE82EF95ULL + 1));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

void SampleToken(std::span<float> logits,
                 const SamplingState& state,
                 std::int64_t position,
                 const spec::TokenMask* mask,
                 spec::SampledToken* out) {
  const spec::SamplingParams& params = state.params();
  const Peak raw = FindPeak(logits);
  if (raw.token < 0) {
    out->token = -1;
    return;
  }
  {
    const std::span<float> allowed = AllowedLogits(logits, params, mask);
    Edits edits(allowed);
    ApplyParams(state, edits);
    const bool changed = allowed.data() != logits.data() || !edits.empty();
    out->token = Pick(state, allowed, changed ? FindPeak(allowed) : raw, position);
    if (out->token < 0) {
      return;
    }
  }
  if (params.logprobs >= 0) {
    const double log_sum = LogSum(logits, raw.value);
    out->logprob = static_cast<float>(
        static_cast<double>(logits[static_cast<std::size_t>(out->token)]) - log_sum);
    out->rank = RankOf(logits, out->token);
    out->top = BestTokens(logits, params.logprobs, log_sum);
  }
}

void ScoreToken(std::span<const float> logits,
                std::int32_t token,
                std::int32_t top,
                spec::SampledToken* out) {
  const Peak peak = FindPeak(logits);
  if (peak.token < 0 || token < 0 || static_cast<std::size_t>(token) >= logits.size()) {
    out->token = -1;
    return;
  }
  const double log_sum = LogSum(logits, peak.value);
  out->token = token;
  out->logprob =
      static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(token)]) - log_sum);
  out->rank = RankOf(logits, token);
  out->top = BestTokens(logits, top, log_sum);
}

}  // namespace inferd::model
