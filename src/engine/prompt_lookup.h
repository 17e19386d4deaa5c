// SPDX-License-Identifier: Apache-2.0
// Prompt lookup: guesses what comes next from what came after the same words before, in the prompt
// or the output. Costs no model; pays where text repeats itself (code edits, quotes, summaries).
// After "Prompt Lookup Decoding" (A. Saxena, 2023).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace inferd::engine {

struct PromptLookupOptions {
  std::int32_t max_ngram = 4;  // tokens that must match: the longest match wins
  std::int32_t min_ngram = 2;
  bool adaptive = true;  // a sequence guesses only while that pays (GuessRecord)
};

/// Tokens looked back at most; bounds the time of a lookup (about 10 us).
inline constexpr std::int64_t kMaxLookback = 16'384;

/// Appends to `draft` up to `most` tokens that followed the latest of the longest earlier matches
/// of the end of `tokens`. Pure.
void LookUp(std::span<const std::int32_t> tokens,
            const PromptLookupOptions& options,
            std::int64_t most,
            std::vector<std::int32_t>* draft);

/// How well the guesses of one sequence would do, measured on every token that it really got,
/// whether or not a step ran with guesses. Decides when guessing pays.
class GuessRecord {
 public:
  /// `guessed` < 0: nothing was found to guess by.
  void Take(std::int32_t guessed, std::int32_t token);
  /// Guessing begins at a share of right first guesses of 1 in 4 and ends below 1 in 8: a step with
  /// guesses cannot be planned ahead of the one before, which costs a little even when all is
  /// wrong.
  bool Pays(bool now) const { return share_ >= (now ? 0.125 : 0.25); }

 private:
  double share_ = 0;  // of the last twenty or so tokens
};

}  // namespace inferd::engine
