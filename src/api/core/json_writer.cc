// SPDX-License-Identifier: Apache-2.0
#include "api/core/json_writer.h"

#include "text/json_stream.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>

namespace inferd::api {
void AppendEscaped(std::string_view text, std::string* out) { text::AppendJsonEscaped(text, out); }

void AppendQuoted(std::string_view text, std::string* out) { text::AppendJsonString(text, out); }

void AppendInt(std::int64_t value, std::string* out) {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out->append(digits.data(), static_cast<std::size_t>(end - digits.data()));
}

void AppendLogprob(float value, std::string* out) {
  if (!std::isfinite(value)) {
    *out += "-9999.0";
    return;
  }
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  const std::string_view text(digits.data(), static_cast<std::size_t>(end - digits.data()));
  *out += text;
  if (text.find_first_of(".e") == std::string_view::npos) {
    *out += ".0";  // a client with typed JSON gets a number with a fraction every time
  }
}

}  // namespace inferd::api
