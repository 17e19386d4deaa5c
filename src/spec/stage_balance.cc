// SPDX-License-Identifier: Apache-2.0
#include "spec/stage_balance.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace inferd::spec {
namespace {

Result<std::vector<Range>> FromPartition(const ModelSpec& model,
                                         int stages,
                                         const std::vector<int>& partition) {
  if (partition.size() != static_cast<std::size_t>(stages)) {
    return InvalidArgument("--pp-partition {} has {} entries, but --pp is {}",
                           fmt::join(partition, ","),
                           partition.size(),
                           stages);
  }
  std::vector<Range> ranges;
  std::int64_t begin = 0;
  for (const int count : partition) {
    if (count < 1) {
      return InvalidArgument("--pp-partition {}: every stage needs at least one layer",
                             fmt::join(partition, ","));
    }
    ranges.push_back({begin, begin + count});
    begin += count;
  }
  if (begin != model.num_layers) {
    return InvalidArgument("--pp-partition {} adds up to {} layers, but the model has {}",
                           fmt::join(partition, ","),
                           begin,
                           model.num_layers);
  }
  return ranges;
}

// A cut's quality: the heaviest stage first, then the sum of squares.
struct Cost {
  double heaviest = std::numeric_limits<double>::infinity();
  double squares = std::numeric_limits<double>::infinity();
  auto operator<=>(const Cost&) const = default;
};

// Dynamic program over (stages, layers): best cut of the first n layers into s stages.
std::vector<Range> Balance(const std::vector<double>& prefix, double head, int stages) {
  const std::size_t layers = prefix.size() - 1;
  const auto num_stages = static_cast<std::size_t>(stages);
  std::vector<std::vector<Cost>> best(num_stages + 1, std::vector<Cost>(layers + 1));
  std::vector<std::vector<std::size_t>> from(num_stages + 1,
                                             std::vector<std::size_t>(layers + 1, 0));
  best[0][0] = {0, 0};
  for (std::size_t stage = 1; stage <= num_stages; ++stage) {
    for (std::size_t end = stage; end + (num_stages - stage) <= layers; ++end) {
      for (std::size_t begin = stage - 1; begin < end; ++begin) {
        const double load = prefix[end] - prefix[begin] + (stage == num_stages ? head : 0);
        const Cost& before = best[stage - 1][begin];
        const Cost cost{std::max(before.heaviest, load), before.squares + load * load};
        if (cost < best[stage][end]) {
          best[stage][end] = cost;
          from[stage][end] = begin;
        }
      }
    }
  }
  std::vector<Range> ranges(num_stages);
  std::size_t end = layers;
  for (std::size_t stage = num_stages; stage > 0; --stage) {
    ranges[stage - 1] = {static_cast<std::int64_t>(from[stage][end]),
                         static_cast<std::int64_t>(end)};
    end = from[stage][end];
  }
  return ranges;
}

}  // namespace

Result<std::vector<Range>> CutStages(const ModelSpec& model,
                                     int stages,
                                     const std::vector<int>& partition) {
  if (!partition.empty()) {
    return FromPartition(model, stages, partition);
  }
  const auto table = static_cast<double>(model.vocab_size) * static_cast<double>(model.hidden_size);
  std::vector<double> prefix = {0};
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    const double embedding = layer == 0 ? table : 0;
    prefix.push_back(prefix.back() + embedding +
                     static_cast<double>(CountLayerParameters(model, layer)));
  }
  return Balance(prefix, table, stages);
}

}  // namespace inferd::spec
