// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back. One immutable Tokenizer per model, built from a tokenizer.json or
// from the vocabulary arrays of a GGUF file; every request of the model shares it.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct inferd_tokenizer;

namespace inferd::text {

/// What a vocabulary entry is; the numbers are those of `tokenizer.ggml.token_type`.
enum class TokenType : std::int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

/// The vocabulary of a GGUF file as plain arrays (`tokenizer.ggml.*`). Absent keys are empty
/// vectors and nullopt.
struct Vocabulary {
  std::string
      model;        // tokenizer.ggml.model: "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE)
  std::string pre;  // tokenizer.ggml.pre: names the splitting rule of "gpt2"; may be empty
  std::string architecture;  // general.architecture; decides defaults of keys that are absent
  std::vector<std::string> tokens;  // [vocab]
  std::vector<float> scores;        // [vocab] or empty; needed by "llama"
  std::vector<std::int32_t> types;  // [vocab] TokenType numbers, or empty (all normal)
  std::vector<std::string> merges;  // "left right" in rank order; needed by "gpt2"
  std::optional<std::int32_t> bos_id;
  std::optional<std::int32_t> eos_id;
  std::optional<std::int32_t> unk_id;
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;
};

/// What a tokenizer.json does not say itself (see text/tokenizer_config.h for the file that does).
struct TokenizerOptions {
  std::optional<std::string> bos_token = std::nullopt;
  std::optional<std::string> eos_token = std::nullopt;
};

struct EncodeOptions {
  /// Add what the model wants around a prompt (usually BOS). If the text itself begins with the BOS
  /// literal, it is not doubled.
  bool add_special = true;
  /// Recognise special tokens written out in the text ("<|im_end|>"). False: they are spelt as
  /// ordinary text. Added tokens that are not special are recognised either way.
  bool parse_special = true;
};

/// Immutable and thread-safe; shared by all requests of a model. Encode is linear in the text and
/// may take milliseconds for long prompts: never call it on an I/O thread.
class Tokenizer {
 public:
  /// `tokenizer_json` is the text of a Hugging Face tokenizer.json. InvalidArgument if it is
  /// malformed; Unimplemented, by name, if it has a decoder that cannot be streamed.
  static Result<std::shared_ptr<const Tokenizer>> FromJson(std::string_view tokenizer_json,
                                                           const TokenizerOptions& options);
  /// InvalidArgument if the arrays disagree; Unimplemented, by name, for unknown models and
  /// splitting rules.
  static Result<std::shared_ptr<const Tokenizer>> FromVocab(const Vocabulary& vocabulary);

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

  /// `text` must be valid UTF-8 (InvalidArgument otherwise).
  Result<std::vector<std::int32_t>> Encode(std::string_view text, EncodeOptions options) const;

  /// One-shot text of a whole text's ids: invalid byte sequences become U+FFFD, and the space that
  /// the tokenizer puts before a text's first word is taken off again. Decode(Encode(x)) == x
  /// without added specials, up to the tokenizer's own normalisation. Ids outside the vocabulary
  /// contribute nothing.
  std::string Decode(std::span<const std::int32_t> ids, bool skip_special) const;

  /// The raw bytes that a token stands for in a text; may be part of a UTF-8 character. A special
  /// token's bytes are its literal. Empty for ids outside the vocabulary. The view lives as long as
  /// the tokenizer.
  std::string_view TokenBytes(std::int32_t id) const;

  /// True for control tokens (BOS, end of turn, ...), which are hidden from replies.
  bool IsSpecial(std::int32_t id) const;

  /// Looks up a token by its spelling in the vocabulary (a special's literal; "Ġthe" or "▁the" for
  /// ordinary ones).
  std::optional<std::int32_t> TokenToId(std::string_view token) const;

  /// Largest id + 1. A model's output may be wider (padding).
  std::int32_t vocab_size() const { return static_cast<std::int32_t>(flags_.size()); }
  std::optional<std::int32_t> bos_id() const { return bos_id_; }
  std::optional<std::int32_t> eos_id() const { return eos_id_; }
  /// Whether Encode with add_special begins with BOS.
  bool adds_bos() const { return adds_bos_; }
  /// Spaces that the tokenizer slips in before a text's first word, and Decode takes off (0 or 1).
  int leading_spaces_to_strip() const { return leading_spaces_; }
  /// For this room's other wrappers of the crate.
  const inferd_tokenizer* handle() const { return handle_; }

 private:
  Tokenizer() = default;
  void TakeTable();
  Result<> FindWhatEncodeAdds();

  inferd_tokenizer* handle_ = nullptr;  // owned
  // Views into the handle: token id -> bytes at [offsets_[id], offsets_[id + 1]) and its flags.
  std::span<const char> bytes_;
  std::span<const std::uint32_t> offsets_;  // [vocab + 1]
  std::span<const std::uint8_t> flags_;     // [vocab]
  std::optional<std::int32_t> bos_id_;
  std::optional<std::int32_t> eos_id_;
  int leading_spaces_ = 0;
  bool adds_bos_ = false;
};

/// A token as logprobs show it: text (invalid bytes as U+FFFD) and its exact bytes.
struct TokenText {
  std::string token;
  std::vector<std::uint8_t> bytes;
};
TokenText MakeTokenText(const Tokenizer& tokenizer, std::int32_t id);

}  // namespace inferd::text
