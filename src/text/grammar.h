// SPDX-License-Identifier: Apache-2.0
// Constrained decoding: grammars compiled against a model's vocabulary, and matchers that say which
// tokens may come next. Text and tokens only; nothing here knows of requests or steps.
#pragma once

#include "inferd/result.h"
#include "text/tokenizer.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct inferd_grammar_env;
struct inferd_grammar;
struct inferd_matcher;

namespace inferd::text {

/// How a grammar is written. The numbers are known to the crate.
enum class GrammarKind : std::int32_t {
  kJsonObject = 0,  // any JSON object; the source is ignored
  kJsonSchema = 1,  // a JSON schema
  kRegex = 2,       // the whole output matches it (ECMA-262 without flags)
  kChoice = 3,      // a JSON list of strings, of which one is the output
  kGrammar = 4,     // Lark as llguidance reads it (may embed %json {...} and <special> tokens), or
                    // EBNF with `::=` and a rule `root`
  kStructuralTag = 5,  // free text with tags: {"structures": [...], "triggers": [...]}
};

/// What one grammar may cost. Compiling spends at most `initial_fuel`, about 50,000 a millisecond;
/// a mask spends `step_fuel`, about 14,000 a millisecond, and `step_items`, about 20,000.
struct GrammarLimits {
  std::uint64_t source_bytes = 1 << 20;
  std::uint64_t initial_fuel = 2'000'000;
  std::uint64_t step_fuel = 200'000;
  std::uint64_t step_items = 50'000;
  std::uint64_t lexer_states = 50'000;
  std::uint64_t grammar_size = 200'000;
};

class Grammar;

/// The vocabulary as a trie, with the tokens that end an output. Immutable, thread-safe, made once
/// per model: takes some 100 ms for 150,000 tokens.
class GrammarVocabulary {
 public:
  /// InvalidArgument when no end token lies in the vocabulary.
  static Result<std::shared_ptr<const GrammarVocabulary>> Make(
      std::shared_ptr<const Tokenizer> tokenizer, std::span<const std::int32_t> end_tokens);
  GrammarVocabulary(const GrammarVocabulary&) = delete;
  GrammarVocabulary& operator=(const GrammarVocabulary&) = delete;
  ~GrammarVocabulary();

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  /// How Lark source names a token: "<[ID]>". NotFound for a spelling that is no token.
  Result<std::string> LarkToken(std::string_view spelling) const;

 private:
  friend class Grammar;
  explicit GrammarVocabulary(std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {}

  std::shared_ptr<const Tokenizer> tokenizer_;
  inferd_grammar_env* handle_ = nullptr;  // owned
};

/// Walks along one output. Copies are independent. One thread at a time.
class GrammarMatcher {
 public:
  GrammarMatcher(GrammarMatcher&& other) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&& other) noexcept;
  GrammarMatcher(const GrammarMatcher&) = delete;
  GrammarMatcher& operator=(const GrammarMatcher&) = delete;
  ~GrammarMatcher();

  Result<GrammarMatcher> Clone() const;

  /// Sets bit i % 32 of word i / 32 for each token i that may come next, and clears all others. The
  /// end tokens are among them exactly when the output may end here. An error (the grammar is too
  /// ambiguous for its limits, or nothing can follow) is final.
  Result<> FillMask(std::span<std::uint32_t> words);
  /// InvalidArgument when the token may not come next; the matcher then stays where it was.
  Result<> Accept(std::int32_t token);
  /// The same for a text. After an error the matcher may be anywhere within it.
  Result<> AcceptText(std::string_view text);
  /// The output may end here.
  Result<bool> IsAccepting();
  /// Nothing but an end token may follow, or one has been accepted.
  bool is_stopped() const;

 private:
  friend class Grammar;
  explicit GrammarMatcher(inferd_matcher* handle) : handle_(handle) {}

  inferd_matcher* handle_ = nullptr;  // owned
};

/// A compiled grammar. Immutable, thread-safe; may be cached and shared by requests.
class Grammar {
 public:
  /// InvalidArgument with the JSON pointer or the construct that is malformed, not supported or too
  /// costly. Takes up to some ten milliseconds: not for I/O or engine threads.
  static Result<std::shared_ptr<const Grammar>> Compile(
      std::shared_ptr<const GrammarVocabulary> vocabulary,
      GrammarKind kind,
      std::string_view source,
      const GrammarLimits& limits);
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;
  ~Grammar();

  /// A matcher at the start of an output.
  Result<GrammarMatcher> NewMatcher() const;
  /// About the memory it takes.
  std::size_t num_bytes() const;

 private:
  explicit Grammar(std::shared_ptr<const GrammarVocabulary> vocabulary)
      : vocabulary_(std::move(vocabulary)) {}

  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  inferd_grammar* handle_ = nullptr;  // owned
};

/// Checks a schema as Compile does and respells it for embedding into Lark source behind %json.
/// `pointer` leads to the schema in the client's request, for messages ("" for the whole).
Result<std::string> PrepareJsonSchema(std::string_view schema, std::string_view pointer);

}  // namespace inferd::text
