// SPDX-License-Identifier: Apache-2.0
// GrammarCache: compiled grammars of one model, kept while they fit.
#pragma once

#include "inferd/result.h"
#include "text/grammar.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace inferd::text {

/// Thread-safe. Compiles on the caller's thread, so not for I/O or engine threads. The least
/// recently used grammars go when all together exceed the bytes.
class GrammarCache {
 public:
  static constexpr std::size_t kDefaultBytes = 256 << 20;

  GrammarCache(std::shared_ptr<const Tokenizer> tokenizer,
               std::vector<std::int32_t> end_tokens,
               std::size_t max_bytes = kDefaultBytes);

  /// From the cache, or compiled with the default limits; a grammar that does not compile is not
  /// kept.
  Result<std::shared_ptr<const Grammar>> Get(GrammarKind kind, std::string_view source);

  /// Made at the first call.
  Result<std::shared_ptr<const GrammarVocabulary>> vocabulary();
  std::size_t num_bytes() const;

 private:
  struct Entry {
    std::string key;  // kind and source
    std::shared_ptr<const Grammar> grammar;
    std::size_t num_bytes = 0;
  };

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::vector<std::int32_t> end_tokens_;
  const std::size_t max_bytes_;
  std::mutex vocabulary_mutex_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;  // guarded by vocabulary_mutex_
  mutable std::mutex mutex_;
  // Guarded by mutex_: the newest first, and where each is.
  std::list<Entry> entries_;
  std::unordered_map<std::string_view, std::list<Entry>::iterator> places_;
  std::size_t num_bytes_ = 0;
};

}  // namespace inferd::text
