// SPDX-License-Identifier: Apache-2.0
#include "text/json_stream.h"

#include "text/white_space.h"

namespace inferd::text {
namespace {

constexpr char kHex[] = "0123456789abcdef";
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

int HexValue(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

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

void AppendJsonEscaped(std::string_view text, std::string* out) {
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

void AppendJsonString(std::string_view text, std::string* out) {
  *out += '"';
  AppendJsonEscaped(text, out);
  *out += '"';
}

void AppendUtf8(std::uint32_t code_point, std::string* out) {
  const auto put = [&](std::uint32_t byte) { *out += static_cast<char>(byte); };
  if (code_point > 0x10ffff || (code_point >= 0xd800 && code_point < 0xe000)) {
    *out += kReplacement;
  } else if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xc0 | code_point >> 6);
    put(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    put(0xe0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3f));
    put(0x80 | (code_point & 0x3f));
  } else {
    put(0xf0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3f));
    put(0x80 | (code_point >> 6 & 0x3f));
    put(0x80 | (code_point & 0x3f));
  }
}

JsonValue::Status JsonValue::Push(char c, std::string* out) {
  if (!begun_) {
    if (IsSpace(c)) {
      return Status::kMore;
    }
    if (c == ',' || c == '}' || c == ']') {
      return Status::kEnded;
    }
    begun_ = true;
    first_ = c;
  }
  if (in_string_) {
    if (static_cast<unsigned char>(c) < 0x20) {
      AppendJsonEscaped({&c, 1}, out);
      escaped_ = false;
      return Status::kMore;
    }
    *out += c;
    const bool closes = c == '"' && !escaped_;
    escaped_ = c == '\\' && !escaped_;
    in_string_ = !closes;
    return closes && depth_ == 0 ? Status::kDone : Status::kMore;
  }
  switch (c) {
    case '"':
      in_string_ = true;
      break;
    case '{':
    case '[':
      ++depth_;
      break;
    case '}':
    case ']':
      if (depth_ == 0) {
        return Status::kEnded;
      }
      *out += c;
      return --depth_ == 0 ? Status::kDone : Status::kMore;
    case ',':
      if (depth_ == 0) {
        return Status::kEnded;
      }
      break;
    default:
      if (depth_ == 0 && IsSpace(c)) {
        return Status::kEnded;
      }
  }
  *out += c;
  return Status::kMore;
}

void JsonStringDecoder::TakeUnit(std::string* out) {
  if (high_ != 0 && unit_ >= 0xdc00 && unit_ < 0xe000) {
    AppendUtf8(0x10000 + ((high_ - 0xd800) << 10) + (unit_ - 0xdc00), out);
    high_ = 0;
    return;
  }
  if (high_ != 0) {
    *out += kReplacement;
    high_ = 0;
  }
  if (unit_ >= 0xd800 && unit_ < 0xdc00) {
    high_ = unit_;
  } else {
    AppendUtf8(unit_, out);
  }
}

bool JsonStringDecoder::Push(char c, std::string* out) {
  if (hex_left_ > 0) {
    const int value = HexValue(c);
    if (value >= 0) {
      unit_ = unit_ << 4 | static_cast<std::uint32_t>(value);
      if (--hex_left_ == 0) {
        TakeUnit(out);
      }
      return false;
    }
    hex_left_ = 0;
    *out += kReplacement;
  }
  if (escaped_) {
    escaped_ = false;
    if (c == 'u') {
      hex_left_ = 4;
      unit_ = 0;
      return false;
    }
    if (high_ != 0) {
      *out += kReplacement;
      high_ = 0;
    }
    constexpr std::string_view kFrom = "bfnrt\"\\/";
    constexpr std::string_view kTo = "\b\f\n\r\t\"\\/";
    const std::size_t at = kFrom.find(c);
    if (at == std::string_view::npos) {
      *out += '\\';
      *out += c;
    } else {
      *out += kTo[at];
    }
    return false;
  }
  if (c == '\\') {
    escaped_ = true;
    return false;
  }
  if (high_ != 0) {
    *out += kReplacement;
    high_ = 0;
  }
  if (c == '"') {
    return true;
  }
  *out += c;
  return false;
}

}  // namespace inferd::text
