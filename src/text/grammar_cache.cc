// SPDX-License-Identifier: Apache-2.0
#include "text/grammar_cache.h"

#include <utility>

namespace inferd::text {

GrammarCache::GrammarCache(std::shared_ptr<const Tokenizer> tokenizer,
                           std::vector<std::int32_t> end_tokens,
                           std::size_t max_bytes)
    : tokenizer_(std::move(tokenizer)), end_tokens_(std::move(end_tokens)), max_bytes_(max_bytes) {}

Result<std::shared_ptr<const GrammarVocabulary>> GrammarCache::vocabulary() {
  const std::lock_guard lock(vocabulary_mutex_);  // Held while it is made: all need the same one.
  if (vocabulary_ == nullptr) {
    INFERD_ASSIGN(vocabulary_, GrammarVocabulary::Make(tokenizer_, end_tokens_));
  }
  return vocabulary_;
}

std::size_t GrammarCache::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

Result<std::shared_ptr<const Grammar>> GrammarCache::Get(GrammarKind kind,
                                                         std::string_view source) {
  std::string key(1, static_cast<char>(kind));
  key += source;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = places_.find(key); found != places_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return entries_.front().grammar;
    }
  }
  INFERD_ASSIGN(auto words, vocabulary());
  INFERD_ASSIGN(auto grammar, Grammar::Compile(std::move(words), kind, source, {}));
  const std::size_t num_bytes = grammar->num_bytes() + key.size();
  const std::lock_guard lock(mutex_);
  if (num_bytes > max_bytes_ || places_.contains(key)) {
    return grammar;  // Too large to keep, or another thread was as fast.
  }
  entries_.push_front({std::move(key), grammar, num_bytes});
  places_.emplace(entries_.front().key, entries_.begin());
  num_bytes_ += num_bytes;
  while (num_bytes_ > max_bytes_) {
    num_bytes_ -= entries_.back().num_bytes;
    places_.erase(entries_.back().key);
    entries_.pop_back();
  }
  return grammar;
}

}  // namespace inferd::text
