// SPDX-License-Identifier: Apache-2.0
// Finds stop strings in text that arrives in pieces. StopStrings is built once per request and
// shared by its choices; StopMatcher is the state of one choice.
#pragma once

#include "inferd/result.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::text {

/// The stop strings of a request as an Aho-Corasick automaton over bytes. Immutable, shared between
/// threads.
class StopStrings {
 public:
  static constexpr std::size_t kMaxStrings = 64;
  static constexpr std::size_t kMaxTotalBytes = 4 * 1024;  // a node is 1 KiB

  /// InvalidArgument, naming the index, for an empty string or too many or too long ones.
  static Result<std::shared_ptr<const StopStrings>> Make(std::span<const std::string> strings);

  bool empty() const { return strings_.empty(); }

 private:
  friend class StopMatcher;

  struct Node {
    std::array<std::int32_t, 256> next;  // complete transitions
    std::int32_t depth = 0;   // bytes of the longest stop prefix that the text now ends with
    std::int32_t match = -1;  // the longest stop string that ends here, by index
  };

  void Build();

  std::vector<std::string> strings_;
  std::vector<Node> nodes_;  // [1 + total bytes at most], root first
};

/// The match that ends first wins; of several that end there, the longest. So the result does not
/// depend on how the text is cut into pieces. Text that may yet become a stop string is held back.
class StopMatcher {
 public:
  struct Output {
    std::string text;                    // safe to show
    std::optional<std::size_t> matched;  // index of the stop string; nothing follows after it
  };

  /// `include_stop` keeps the stop string at the end of the text.
  StopMatcher(std::shared_ptr<const StopStrings> strings, bool include_stop);

  /// `delta` is valid UTF-8, and so is the output. With `enabled` false (min_tokens not reached)
  /// the text passes through, and a later match must begin after it. After a match, further text is
  /// dropped.
  Output Push(std::string_view delta, bool enabled = true);
  /// The held-back text; call at the end of the sequence when nothing matched.
  std::string Finish();
  bool matched() const { return matched_.has_value(); }

 private:
  std::shared_ptr<const StopStrings> strings_;
  bool include_stop_;
  std::int32_t node_ = 0;
  std::string held_;  // the last depth(node_) bytes
  std::optional<std::size_t> matched_;
};

}  // namespace inferd::text
