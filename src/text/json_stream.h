// SPDX-License-Identifier: Apache-2.0
// Byte-driven pieces that take a model's JSON apart as it comes. Fed one byte at a time, so the
// result cannot depend on how a stream is cut.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace inferd::text {

/// Appends `text` as the inside of a JSON string; control characters, DEL too, as escapes.
void AppendJsonEscaped(std::string_view text, std::string* out);
void AppendJsonString(std::string_view text, std::string* out);

/// Passes one JSON value through. It only finds its end (brackets are counted, not matched); the
/// model's own mistakes stay in it, but raw control characters in strings, a common one, are
/// escaped.
class JsonValue {
 public:
  enum class Status : std::uint8_t {
    kMore,
    kDone,   // with this byte
    kEnded,  // before this byte, which is not part of the value
  };
  /// Leading white space is dropped.
  Status Push(char c, std::string* out);
  bool in_string() const { return in_string_; }
  bool begun() const { return begun_; }
  bool is_container() const { return begun_ && (first_ == '{' || first_ == '['); }
  bool is_string() const { return begun_ && first_ == '"'; }

 private:
  int depth_ = 0;
  char first_ = 0;
  bool begun_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
};

/// Decodes the inside of a JSON string.
class JsonStringDecoder {
 public:
  /// True with the closing quote. A broken escape is kept as it is written.
  bool Push(char c, std::string* out);

 private:
  void TakeUnit(std::string* out);

  int hex_left_ = 0;
  std::uint32_t unit_ = 0;
  std::uint32_t high_ = 0;  // surrogate that waits for its low half
  bool escaped_ = false;
};

void AppendUtf8(std::uint32_t code_point, std::string* out);

}  // namespace inferd::text
