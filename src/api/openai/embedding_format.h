// SPDX-License-Identifier: Apache-2.0
// The answer of /v1/embeddings: a list of vectors of length 1, as numbers or as base64 of
// little-endian floats.
#pragma once

#include "api/core/reply_format.h"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

/// The first `dimensions` values (0: all), scaled to length 1. A vector of zeros stays one.
std::vector<float> NormalizedEmbedding(std::span<const float> values, std::size_t dimensions);

class EmbeddingFormat final : public UnstreamedFormat {
 public:
  EmbeddingFormat(std::string_view model, bool base64, std::size_t dimensions)
      : model_(model), base64_(base64), dimensions_(dimensions) {}

  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;

 private:
  std::string model_;
  bool base64_;
  std::size_t dimensions_;
};

}  // namespace inferd::api
