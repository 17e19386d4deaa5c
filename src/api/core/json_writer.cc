// SPDX-License-Identifier: Apache-2.0
#include "api/core/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>

namespace inferd::api {
namespace {

constexpr char kHex[] = "0123456789abcdef";

void AppendEscape(unsigned char c, std::string* out) {
  *out += '\\';
  switch (c) {
    case '"':
    case '\\':
      *out += static_cast<char>(c);
      break;
    case '\n':
      *out += 'n';
      break;
    case '\r':
      *out += 'r';
      break;
    case '\t':
      *out += 't';
      break;
    default:
      *out += "u00";
      *out += kHex[c >> 4];
      *out += kHex[c & 15];
  }
}

}  // namespace

void AppendEscaped(std::string_view text, std::string* out) {
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) [[likely]] {
      continue;
    }
    out->append(text, start, i - start);
    AppendEscape(c, out);
    start = i + 1;
  }
  out->append(text, start);
}

void AppendQuoted(std::string_view text, std::string* out) {
  *out += '"';
  AppendEscaped(text, out);
  *out += '"';
}

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
