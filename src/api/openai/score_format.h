// SPDX-License-Identifier: Apache-2.0
// Answers of /v1/score and /v1/rerank: cosine similarities of embeddings. Choice k is the embedding
// of text k; pairs say which are compared.
#pragma once

#include "api/core/reply_format.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inferd::api {

/// In [-1, 1]; 0 when one of them has no length.
double CosineSimilarity(std::span<const float> a, std::span<const float> b);

using TextPairs = std::vector<std::pair<std::size_t, std::size_t>>;

class ScoreFormat final : public UnstreamedFormat {
 public:
  ScoreFormat(std::string_view model, TextPairs pairs) : model_(model), pairs_(std::move(pairs)) {}
  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;

 private:
  std::string model_;
  TextPairs pairs_;
};

/// Choice 0 is the query, choice 1 + i document i. Best first, at most `top_n`.
class RerankFormat final : public UnstreamedFormat {
 public:
  /// `documents`: their texts when the client wants them back, else empty.
  RerankFormat(std::string_view model, std::size_t top_n, std::vector<std::string> documents)
      : model_(model), top_n_(top_n), documents_(std::move(documents)) {}
  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;

 private:
  std::string model_;
  std::size_t top_n_;
  std::vector<std::string> documents_;
};

}  // namespace inferd::api
