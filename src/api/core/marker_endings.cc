// SPDX-License-Identifier: Apache-2.0
#include "api/core/marker_endings.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace inferd::api {
namespace {

bool Fits(const text::Grammar& grammar, std::string_view rest) {
  auto matcher = grammar.NewMatcher();
  return matcher.ok() && matcher->AcceptText(rest).ok();
}

}  // namespace

MarkerEndings::MarkerEndings(const text::Tokenizer& tokenizer,
                             std::string marker,
                             const text::Grammar& grammar)
    : marker_(std::move(marker)) {
  std::unordered_map<std::string_view, bool> fits;  // by what is behind the marker
  for (std::int32_t token = 0; !marker_.empty() && token < tokenizer.vocab_size(); ++token) {
    const std::string_view bytes = tokenizer.TokenBytes(token);
    for (std::size_t end = bytes.find(marker_.back()); end < bytes.size();
         end = bytes.find(marker_.back(), end)) {
      ++end;
      const std::size_t own = std::min(end, marker_.size());
      if (end == bytes.size() ||
          bytes.substr(end - own, own) != std::string_view(marker_).substr(marker_.size() - own)) {
        continue;
      }
      const auto [known, fresh] = fits.try_emplace(bytes.substr(end), false);
      if (fresh) {
        known->second = Fits(grammar, known->first);
      }
      if (!known->second) {
        unfit_.push_back({token, own});
      }
    }
  }
}

void MarkerEndings::Forbid(std::string_view tail, std::span<std::uint32_t> words) const {
  for (const Ending& ending : unfit_) {
    const auto word = static_cast<std::size_t>(ending.token) / 32;
    const std::string_view before(marker_.data(), marker_.size() - ending.marker_bytes);
    if (word < words.size() && tail.ends_with(before)) {
      words[word] &= ~(1U << (static_cast<std::uint32_t>(ending.token) % 32));
    }
  }
}

}  // namespace inferd::api
