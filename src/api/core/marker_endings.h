// SPDX-License-Identifier: Apache-2.0
// Tokens that complete a marker and go on behind it. Where a grammar begins behind a marker, what
// such a token says behind it belongs to the grammar already.
#pragma once

#include "text/grammar.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

class MarkerEndings {
 public:
  /// Looks at every token once, and tries on the grammar what those found say behind the marker:
  /// some milliseconds, so not for I/O or engine threads.
  MarkerEndings(const text::Tokenizer& tokenizer, std::string marker, const text::Grammar& grammar);

  const std::string& marker() const { return marker_; }
  /// Clears the bits of the tokens that, behind `tail`, would complete the marker and then break
  /// the grammar.
  void Forbid(std::string_view tail, std::span<std::uint32_t> words) const;

 private:
  struct Ending {
    std::int32_t token;
    std::size_t marker_bytes;  // how much of the marker is the token's own
  };

  const std::string marker_;
  std::vector<Ending> unfit_;
};

}  // namespace inferd::api
