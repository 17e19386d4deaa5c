// SPDX-License-Identifier: Apache-2.0
#include "plan/trace.h"

#include "base/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numbers>

namespace inferd::plan {
namespace {

constexpr std::size_t kMaxLines = 20'000'000;
constexpr std::size_t kMaxLineBytes = 4096;
constexpr std::int32_t kMaxTokens = 1 << 24;
constexpr double kMaxSeconds = 1e9;

/// SplitMix64: the standard library's distributions differ between implementations.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  double Uniform() {  // (0, 1]
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
    z ^= z >> 31U;
    return (static_cast<double>(z >> 11U) + 1) * 0x1.0p-53;
  }
  double Normal() {
    return std::sqrt(-2 * std::log(Uniform())) * std::cos(2 * std::numbers::pi * Uniform());
  }

 private:
  std::uint64_t state_;
};

std::int32_t Length(double mean, double spread, Random* random) {
  double value = mean;
  if (spread > 0) {
    const double sigma2 = std::log1p(spread * spread);
    value = std::exp(std::log(mean) - sigma2 / 2 + std::sqrt(sigma2) * random->Normal());
  }
  return static_cast<std::int32_t>(std::clamp(std::round(value), 1.0, double{kMaxTokens}));
}

Result<std::int32_t> Tokens(std::string_view where,
                            const nlohmann::json& json,
                            const char* key,
                            std::int32_t min) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer()) {
    return InvalidArgument("{}: {} must be an integer", where, key);
  }
  const auto value = found->get<std::int64_t>();
  if (value < min || value > kMaxTokens) {
    return InvalidArgument(
        "{}: {} is {}; it must be from {} to {}", where, key, value, min, kMaxTokens);
  }
  return static_cast<std::int32_t>(value);
}

}  // namespace

Result<TraceRequest> ParseTraceLine(std::string_view where, std::string_view line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) {
    return InvalidArgument("{}: not a JSON object", where);
  }
  TraceRequest request;
  const auto arrival = json.find("arrival_s");
  if (arrival == json.end() || !arrival->is_number()) {
    return InvalidArgument("{}: arrival_s must be a number of seconds", where);
  }
  request.arrival_s = arrival->get<double>();
  if (!(request.arrival_s >= 0 && request.arrival_s <= kMaxSeconds)) {
    return InvalidArgument(
        "{}: arrival_s is {}; 0 to {} is possible", where, request.arrival_s, kMaxSeconds);
  }
  INFERD_ASSIGN(request.input_tokens, Tokens(where, json, "input_tokens", 1));
  INFERD_ASSIGN(request.output_tokens, Tokens(where, json, "output_tokens", 1));
  if (json.contains("prefix_id")) {
    INFERD_ASSIGN(request.prefix_id, Tokens(where, json, "prefix_id", 0));
    INFERD_ASSIGN(request.prefix_tokens, Tokens(where, json, "prefix_tokens", 0));
    if (request.prefix_tokens > request.input_tokens) {
      return InvalidArgument("{}: prefix_tokens {} is more than the {} input_tokens",
                             where,
                             request.prefix_tokens,
                             request.input_tokens);
    }
  }
  return request;
}

Result<std::vector<TraceRequest>> ReadTrace(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return NotFound("{}: cannot be read", path);
  }
  std::vector<TraceRequest> trace;
  std::string line;
  std::size_t number = 0;
  while (std::getline(file, line)) {
    ++number;
    if (line.empty()) {
      continue;
    }
    const std::string where = fmt::format("{}: line {}", path, number);
    if (line.size() > kMaxLineBytes || trace.size() >= kMaxLines) {
      return InvalidArgument(
          "{}: at most {} lines of {} bytes are read", where, kMaxLines, kMaxLineBytes);
    }
    INFERD_ASSIGN(const TraceRequest request, ParseTraceLine(where, line));
    if (!trace.empty() && request.arrival_s < trace.back().arrival_s) {
      return InvalidArgument(
          "{}: arrival_s {} is before that of the line above", where, request.arrival_s);
    }
    trace.push_back(request);
  }
  if (trace.empty()) {
    return InvalidArgument("{}: there is no request in it", path);
  }
  return trace;
}

std::vector<TraceRequest> MakeTrace(const TraceRecipe& recipe) {
  Random random(recipe.seed);
  std::vector<TraceRequest> trace;
  trace.reserve(static_cast<std::size_t>(recipe.requests));
  double now = 0;
  for (std::int64_t i = 0; i < recipe.requests; ++i) {
    TraceRequest request;
    now += -std::log(random.Uniform()) / recipe.rate;
    request.arrival_s = now;
    request.input_tokens = Length(recipe.input, recipe.spread, &random);
    request.output_tokens = Length(recipe.output, recipe.spread, &random);
    if (recipe.prefixes > 0) {
      request.prefix_id = std::min(recipe.prefixes - 1,
                                   static_cast<std::int32_t>(random.Uniform() * recipe.prefixes));
      request.prefix_tokens = std::min(
          request.input_tokens - 1, static_cast<std::int32_t>(recipe.input * recipe.prefix_share));
    }
    trace.push_back(request);
  }
  return trace;
}

Result<> WriteTrace(const std::vector<TraceRequest>& trace, const std::string& path) {
  std::ofstream file(path);
  for (const TraceRequest& request : trace) {
    file << fmt::format(R"({{"arrival_s": {:.6f}, "input_tokens": {}, "output_tokens": {})",
                        request.arrival_s,
                        request.input_tokens,
                        request.output_tokens);
    if (request.prefix_id >= 0) {
      file << fmt::format(
          R"(, "prefix_id": {}, "prefix_tokens": {})", request.prefix_id, request.prefix_tokens);
    }
    file << "}\n";
  }
  file.flush();
  if (!file) {
    return FailedPrecondition("{}: cannot be written", path);
  }
  return {};
}

}  // namespace inferd::plan
