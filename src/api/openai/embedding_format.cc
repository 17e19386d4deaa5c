// SPDX-License-Identifier: Apache-2.0
#include "api/openai/embedding_format.h"

#include "api/core/json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <vector>

namespace inferd::api {
namespace {

static_assert(std::endian::native == std::endian::little);

void AppendBase64(std::span<const float> values, std::string* out) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto bytes = std::as_bytes(values);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = (group << 8) | (k < count ? std::to_integer<std::uint32_t>(bytes[i + k]) : 0);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      *out += k <= count ? kDigits[(group >> (18 - 6 * k)) & 63] : '=';
    }
  }
}

void AppendNumbers(std::span<const float> values, std::string* out) {
  *out += '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    fmt::format_to(std::back_inserter(*out), "{}{}", i == 0 ? "" : ",", values[i]);
  }
  *out += ']';
}

}  // namespace

std::vector<float> NormalizedEmbedding(std::span<const float> values, std::size_t dimensions) {
  if (dimensions > 0 && dimensions < values.size()) {
    values = values.first(dimensions);
  }
  double squares = 0;
  for (const float value : values) {
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const double scale = squares > 0 ? 1 / std::sqrt(squares) : 0;
  std::vector<float> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), [scale](float value) {
    return static_cast<float>(value * scale);
  });
  return result;
}

void EmbeddingFormat::AppendFull(std::span<const ReplyPiece> choices,
                                 const Usage& usage,
                                 std::string* out) {
  *out += R"({"object":"list","data":[)";
  for (std::size_t i = 0; i < choices.size(); ++i) {
    *out += i == 0 ? R"({"object":"embedding","index":)" : R"(,{"object":"embedding","index":)";
    AppendInt(choices[i].index, out);
    *out += R"(,"embedding":)";
    const std::vector<float> values = NormalizedEmbedding(choices[i].embedding, dimensions_);
    if (base64_) {
      *out += '"';
      AppendBase64(values, out);
      *out += '"';
    } else {
      AppendNumbers(values, out);
    }
    *out += '}';
  }
  *out += R"(],"model":)";
  AppendQuoted(model_, out);
  *out += R"(,"usage":{"prompt_tokens":)";
  AppendInt(usage.prompt_tokens, out);
  *out += R"(,"total_tokens":)";
  AppendInt(usage.prompt_tokens, out);
  *out += "}}";
}

}  // namespace inferd::api
