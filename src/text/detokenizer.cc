// SPDX-License-Identifier: Apache-2.0
#include "text/detokenizer.h"

#include <algorithm>
#include <utility>

namespace inferd::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// How a byte sequence begins: a character, a broken part, or an unfinished character.
struct Start {
  enum class Kind { kCharacter, kBroken, kUnfinished } kind;
  std::size_t size;
};

/// Looks at the first character of `bytes` (not empty), by the table of well-formed sequences of
/// the Unicode standard.
Start FirstCharacter(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  const std::uint8_t lead = at(0);
  if (lead < 0x80) {
    return {Start::Kind::kCharacter, 1};
  }
  if (lead < 0xC2 || lead > 0xF4) {
    return {Start::Kind::kBroken, 1};
  }
  const std::size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and values past U+10FFFF.
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xBF;
  switch (lead) {
    case 0xE0:
      low = 0xA0;
      break;
    case 0xED:
      high = 0x9F;
      break;
    case 0xF0:
      low = 0x90;
      break;
    case 0xF4:
      high = 0x8F;
      break;
    default:
      break;
  }
  for (std::size_t i = 1; i < size; ++i) {
    if (i == bytes.size()) {
      return {Start::Kind::kUnfinished, i};
    }
    if (at(i) < low || at(i) > high) {
      return {Start::Kind::kBroken, i};
    }
    low = 0x80;
    high = 0xBF;
  }
  return {Start::Kind::kCharacter, size};
}

}  // namespace

void Utf8Assembler::Push(std::string_view bytes, std::string* out) {
  tail_ += bytes;
  std::string_view rest = tail_;
  while (!rest.empty()) {
    const Start start = FirstCharacter(rest);
    if (start.kind == Start::Kind::kUnfinished) {
      break;
    }
    *out += start.kind == Start::Kind::kCharacter ? rest.substr(0, start.size) : kReplacement;
    rest.remove_prefix(start.size);
  }
  tail_.erase(0, tail_.size() - rest.size());
}

void Utf8Assembler::Finish(std::string* out) {
  if (!tail_.empty()) {
    *out += kReplacement;
    tail_.clear();
  }
}

IncrementalDetokenizer::IncrementalDetokenizer(std::shared_ptr<const Tokenizer> tokenizer,
                                               DetokenizerOptions options)
    : tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      spaces_to_strip_(options_.at_text_start ? tokenizer_->leading_spaces_to_strip() : 0) {}

void IncrementalDetokenizer::Append(std::int32_t id, std::string* out) {
  if (options_.skip_special && tokenizer_->IsSpecial(id)) {
    const auto index = static_cast<std::size_t>(id);
    if (options_.shown == nullptr || index >= options_.shown->size() || !(*options_.shown)[index]) {
      return;
    }
  }
  std::string_view bytes = tokenizer_->TokenBytes(id);
  while (spaces_to_strip_ > 0 && !bytes.empty()) {
    if (bytes.front() != ' ') {
      spaces_to_strip_ = 0;
      break;
    }
    bytes.remove_prefix(1);
    --spaces_to_strip_;
  }
  utf8_.Push(bytes, out);
}

std::string IncrementalDetokenizer::Push(std::int32_t id) {
  std::string out;
  Append(id, &out);
  return out;
}

std::string IncrementalDetokenizer::Push(std::span<const std::int32_t> ids) {
  std::string out;
  for (const std::int32_t id : ids) {
    Append(id, &out);
  }
  return out;
}

std::string IncrementalDetokenizer::Finish() {
  std::string out;
  utf8_.Finish(&out);
  return out;
}

}  // namespace inferd::text
