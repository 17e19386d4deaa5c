// SPDX-License-Identifier: Apache-2.0
// A set of page numbers as a tree of bit words: set, clear and "next member from here" in a few
// loads, whatever the size.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace inferd::engine {

class PageBitmap {
 public:
  PageBitmap(std::int64_t size, bool full) : size_(size) {
    std::int64_t bits = size > 0 ? size : 1;
    while (true) {
      const std::int64_t words = (bits + 63) / 64;
      levels_.emplace_back(static_cast<std::size_t>(words), 0);
      if (words == 1) {
        break;
      }
      bits = words;
    }
    if (full) {
      for (std::int64_t i = 0; i < size; ++i) {
        Insert(i);
      }
    }
  }

  bool Contains(std::int64_t i) const {
    return i >= 0 && i < size_ && (Word(0, i) >> (i & 63) & 1) != 0;
  }

  void Insert(std::int64_t i) {
    for (auto& level : levels_) {
      level[static_cast<std::size_t>(i >> 6)] |= std::uint64_t{1} << (i & 63);
      i >>= 6;
    }
  }

  void Erase(std::int64_t i) {
    for (auto& level : levels_) {
      auto& word = level[static_cast<std::size_t>(i >> 6)];
      word &= ~(std::uint64_t{1} << (i & 63));
      if (word != 0) {
        return;
      }
      i >>= 6;
    }
  }

  /// The least member >= i, or -1.
  std::int64_t Next(std::int64_t i) const {
    if (i >= size_) {
      return -1;
    }
    for (std::size_t level = 0; level < levels_.size(); ++level) {
      const std::int64_t word_index = i >> 6;
      if (word_index >= static_cast<std::int64_t>(levels_[level].size())) {
        return -1;
      }
      const std::uint64_t rest = Word(level, i) >> (i & 63);
      if (rest != 0) {
        return Descend(level, i + std::countr_zero(rest));
      }
      i = word_index + 1;
    }
    return -1;
  }

 private:
  std::uint64_t Word(std::size_t level, std::int64_t i) const {
    return levels_[level][static_cast<std::size_t>(i >> 6)];
  }

  /// The least member below node `i` of `level`.
  std::int64_t Descend(std::size_t level, std::int64_t i) const {
    while (level > 0) {
      --level;
      i = i * 64 + std::countr_zero(levels_[level][static_cast<std::size_t>(i)]);
    }
    return i;
  }

  std::int64_t size_;
  std::vector<std::vector<std::uint64_t>>
      levels_;  // [0]: one bit a page; [n]: one bit a word of [n - 1]
};

}  // namespace inferd::engine
