// SPDX-License-Identifier: Apache-2.0
// Turns a sequence's new token ids into text as they come. One per sequence, used by one thread at
// a time.
#pragma once

#include "text/tokenizer.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::text {

/// Appends bytes and gives back valid UTF-8: whole characters at once, invalid sequences as U+FFFD
/// (one per maximal broken part, as the WHATWG decoder does), the unfinished tail (at most 3 bytes)
/// held back.
class Utf8Assembler {
 public:
  /// Appends to `out` all text that is now certain.
  void Push(std::string_view bytes, std::string* out);
  /// Appends one U+FFFD if an unfinished character is held back.
  void Finish(std::string* out);
  bool holds_tail() const { return !tail_.empty(); }

 private:
  std::string tail_;
};

struct DetokenizerOptions {
  /// Hide control tokens (the OpenAI default). False shows their literals.
  bool skip_special = true;
  /// Control tokens that are shown all the same, by id; null: none.
  std::shared_ptr<const std::vector<bool>> shown = nullptr;
  /// The ids are a text from its beginning, not the continuation of a prompt: the space that the
  /// tokenizer puts before a first word is taken off. Replies continue a prompt, so this is false
  /// for them.
  bool at_text_start = false;
};

/// Pieces joined == the one-shot text, however the ids are cut into calls. Never emits invalid
/// UTF-8.
class IncrementalDetokenizer {
 public:
  explicit IncrementalDetokenizer(std::shared_ptr<const Tokenizer> tokenizer,
                                  DetokenizerOptions options = {});

  /// The text that these ids complete; may be empty.
  std::string Push(std::int32_t id);
  std::string Push(std::span<const std::int32_t> ids);
  /// Call once, at the end of the sequence: "" or one U+FFFD for an unfinished character.
  std::string Finish();

 private:
  void Append(std::int32_t id, std::string* out);

  std::shared_ptr<const Tokenizer> tokenizer_;
  DetokenizerOptions options_;
  int spaces_to_strip_;
  Utf8Assembler utf8_;
};

}  // namespace inferd::text
