// SPDX-License-Identifier: Apache-2.0
// Finds markers in text that arrives in pieces.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::text {

/// Markers that count in one state, each with a number that the owner gave it.
class MarkerSet {
 public:
  void Add(std::string_view marker, int event);

  struct Found {
    int event = -1;          // -1: none begins here
    std::size_t size = 0;    // of the marker
    bool undecided = false;  // what is there may become one
  };
  /// Looks at the beginning of `text`. Of several markers the shortest counts, which is the one
  /// that a stream completes first.
  Found At(std::string_view text) const;
  /// A marker begins with this byte.
  bool MayBegin(char c) const { return begins_[static_cast<unsigned char>(c)]; }

 private:
  struct Marker {
    std::string text;
    int event;
  };
  std::vector<Marker> markers_;  // shortest first
  std::array<bool, 256> begins_{};
};

}  // namespace inferd::text
