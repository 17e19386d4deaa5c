// SPDX-License-Identifier: Apache-2.0
#include "model/sampler_chain.h"

#include "model/logits.h"
#include "model/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace inferd::model {
namespace {

using spec::SamplerKind;

constexpr SamplerKind kUsualOrder[] = {SamplerKind::kTemperature,
                                       SamplerKind::kTopK,
                                       SamplerKind::kTypicalP,
                                       SamplerKind::kTopP,
                                       SamplerKind::kMinP,
                                       SamplerKind::kXtc};
// The random number that decides on XTC is another one than that of the draw.
constexpr std::uint64_t kXtcStream = 0x5851F42D4C957F2DULL;

/// What is left of the candidates. `z` is a logit less the largest one, perhaps scaled.
class Chain {
 public:
  Chain(std::span<const float> logits, float peak, float lowest) {
    Collect(logits, peak, 1, std::max(lowest - peak, -1e29F), left_);
  }

  void Apply(SamplerKind kind, const spec::SamplingParams& params, std::int64_t position) {
    switch (kind) {
      case SamplerKind::kTemperature:
        return Temper(params);
      case SamplerKind::kTopK:
        return KeepTopK(params.top_k);
      case SamplerKind::kTypicalP:
        return KeepTypical(params.typical_p);
      case SamplerKind::kTopP:
        return KeepTopP(params.top_p);
      case SamplerKind::kMinP:
        return KeepMinP(params.min_p);
      case SamplerKind::kXtc:
        if (RandomAt(params.seed ^ kXtcStream, position) < params.xtc_probability) {
          ExcludeTop(params.xtc_threshold);
        }
        return;
    }
  }

  std::int32_t Draw(double random) {
    Weigh();
    double sum = 0;
    for (std::size_t i = 0; i < left_.size(); ++i) {
      sum += shares_[i];
      if (sum > random) {
        return left_[i].token;
      }
    }
    return left_.front().token;
  }

 private:
  void Sort() {
    if (!sorted_) {
      std::sort(left_.begin(), left_.end());
      sorted_ = true;
    }
  }

  /// Sorts, and fills `shares_` with the probabilities.
  void Weigh() {
    Sort();
    shares_.clear();
    double total = 0;
    for (const Candidate& candidate : left_) {
      shares_.push_back(static_cast<double>(ExpOf(candidate.z - left_.front().z)));
      total += shares_.back();
    }
    for (double& share : shares_) {
      share /= total;
    }
  }

  /// In nats; of `shares_`.
  double Entropy() const {
    double entropy = 0;
    for (const double share : shares_) {
      entropy -= share > 0 ? share * std::log(share) : 0;
    }
    return entropy;
  }

  void Temper(const spec::SamplingParams& params) {
    double temperature = params.temperature;
    if (params.dynatemp_range > 0 && left_.size() > 1) {
      Weigh();
      const double least = std::max(0.0, params.temperature - params.dynatemp_range);
      const double most = params.temperature + params.dynatemp_range;
      const double level = Entropy() / std::log(static_cast<double>(left_.size()));
      temperature = least + (most - least) * std::pow(level, params.dynatemp_exponent);
    }
    if (temperature < kGreedyTemperature) {
      Sort();
      left_.resize(1);
      return;
    }
    const auto inverse = static_cast<float>(1 / temperature);
    for (Candidate& candidate : left_) {
      candidate.z *= inverse;
    }
  }

  void KeepTopK(std::int32_t top_k) {
    const auto count = static_cast<std::size_t>(std::max(top_k, 0));
    if (count == 0 || count >= left_.size()) {
      return;
    }
    if (!sorted_) {
      std::nth_element(
          left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(count), left_.end());
    }
    left_.resize(count);
    Sort();
  }

  /// Those whose surprise is nearest to the expected one, until they have this mass together.
  void KeepTypical(double typical_p) {
    if (typical_p >= 1 || left_.size() < 2) {
      return;
    }
    Weigh();
    const double entropy = Entropy();
    std::vector<double> distance;
    distance.reserve(left_.size());
    for (const double share : shares_) {
      distance.push_back(share > 0 ? std::abs(-std::log(share) - entropy) : HUGE_VAL);
    }
    std::vector<std::size_t> order(left_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return distance[a] < distance[b];
    });
    std::size_t keep = 0;
    for (double mass = 0; keep < order.size() && (keep == 0 || mass < typical_p); ++keep) {
      mass += shares_[order[keep]];
    }
    order.resize(keep);
    std::sort(order.begin(), order.end());
    std::vector<Candidate> kept;
    kept.reserve(keep);
    for (const std::size_t index : order) {
      kept.push_back(left_[index]);
    }
    left_ = std::move(kept);
  }

  void KeepTopP(double top_p) {
    if (top_p >= 1) {
      return;
    }
    Weigh();
    std::size_t keep = 0;
    for (double mass = 0; keep < left_.size() && (keep == 0 || mass < top_p); ++keep) {
      mass += shares_[keep];
    }
    left_.resize(keep);
  }

  void KeepMinP(double min_p) {
    if (min_p <= 0) {
      return;
    }
    Sort();
    const float floor = left_.front().z + static_cast<float>(std::log(min_p));
    std::size_t keep = 1;
    while (keep < left_.size() && left_[keep].z >= floor) {
      ++keep;
    }
    left_.resize(keep);
  }

  /// All above the threshold but for the least likely of them.
  void ExcludeTop(double threshold) {
    Weigh();
    std::size_t above = 0;
    while (above < left_.size() && shares_[above] >= threshold) {
      ++above;
    }
    if (above > 1) {
      left_.erase(left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(above - 1));
    }
  }

  std::vector<Candidate> left_;  // never empty
  std::vector<double> shares_;   // of `left_`, after Weigh()
  bool sorted_ = false;
};

}  // namespace

bool UsesChain(const spec::SamplingParams& params) {
  return params.typical_p < 1 || params.xtc_probability > 0 || params.dynatemp_range > 0 ||
         !params.samplers.empty();
}

std::int32_t DrawFromChain(std::span<const float> logits,
                           const spec::SamplingParams& params,
                           float peak,
                           float lowest,
                           std::int64_t position) {
  Chain chain(logits, peak, lowest);
  const std::span<const SamplerKind> order =
      params.samplers.empty() ? std::span<const SamplerKind>(kUsualOrder) : params.samplers;
  for (const SamplerKind kind : order) {
    chain.Apply(kind, params, position);
  }
  return chain.Draw(RandomAt(params.seed, position));
}

}  // namespace inferd::model
