// SPDX-License-Identifier: Apache-2.0
#include "api/openai/score_format.h"

#include "api/core/generate_params.h"
#include "api/core/json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace inferd::api {
namespace {

void AppendModelAndUsage(std::string_view model, const Usage& usage, std::string* out) {
  *out += R"(],"model":)";
  AppendQuoted(model, out);
  fmt::format_to(std::back_inserter(*out),
                 R"(,"usage":{{"prompt_tokens":{0},"total_tokens":{0},"completion_tokens":0}}}})",
                 usage.prompt_tokens);
}

}  // namespace

double CosineSimilarity(std::span<const float> a, std::span<const float> b) {
  double product = 0;
  double squares_a = 0;
  double squares_b = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double x = a[i];
    const double y = b[i];
    product += x * y;
    squares_a += x * x;
    squares_b += y * y;
  }
  const double lengths = std::sqrt(squares_a) * std::sqrt(squares_b);
  return lengths > 0 ? std::clamp(product / lengths, -1.0, 1.0) : 0;
}

void ScoreFormat::AppendFull(std::span<const ReplyPiece> choices,
                             const Usage& usage,
                             std::string* out) {
  *out += R"({"id":)";
  AppendQuoted(NewId("score-"), out);
  fmt::format_to(std::back_inserter(*out), R"(,"object":"list","created":{},"data":[)", UnixNow());
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    const auto& [a, b] = pairs_[i];
    fmt::format_to(std::back_inserter(*out),
                   R"({}{{"index":{},"object":"score","score":{}}})",
                   i == 0 ? "" : ",",
                   i,
                   CosineSimilarity(choices[a].embedding, choices[b].embedding));
  }
  AppendModelAndUsage(model_, usage, out);
}

void RerankFormat::AppendFull(std::span<const ReplyPiece> choices,
                              const Usage& usage,
                              std::string* out) {
  std::vector<std::pair<double, std::size_t>> ranked;
  for (std::size_t i = 1; i < choices.size(); ++i) {
    ranked.emplace_back(CosineSimilarity(choices[0].embedding, choices[i].embedding), i - 1);
  }
  std::stable_sort(
      ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  ranked.resize(std::min(ranked.size(), top_n_));
  *out += R"({"id":)";
  AppendQuoted(NewId("rerank-"), out);
  *out += R"(,"results":[)";
  for (std::size_t i = 0; i < ranked.size(); ++i) {
    fmt::format_to(std::back_inserter(*out),
                   R"({}{{"index":{},"relevance_score":{})",
                   i == 0 ? "" : ",",
                   ranked[i].second,
                   ranked[i].first);
    if (!documents_.empty()) {
      *out += R"(,"document":{"text":)";
      AppendQuoted(documents_[ranked[i].second], out);
      *out += '}';
    }
    *out += '}';
  }
  AppendModelAndUsage(model_, usage, out);
}

}  // namespace inferd::api
