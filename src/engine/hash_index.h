// SPDX-License-Identifier: Apache-2.0
// Open-addressing map from Hash128 to a small number, of fixed capacity: one cache line a look-up,
// flat in its size.
#pragma once

#include "engine/prefix_hasher.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace inferd::engine {

/// Keys are compared by 96 of their 128 bits; the prefix cache compares tokens on top.
class HashIndex {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  explicit HashIndex(std::size_t max_entries)
      : entries_(std::bit_ceil(max_entries * 2 + 2)), mask_(entries_.size() - 1) {}

  std::uint32_t Find(const Hash128& key) const {
    for (std::size_t i = key.low & mask_;; i = (i + 1) & mask_) {
      const Entry& entry = entries_[i];
      if (entry.value == kNone) {
        return kNone;
      }
      if (entry.low == key.low && entry.high == static_cast<std::uint32_t>(key.high)) {
        return entry.value;
      }
    }
  }

  void Prefetch(const Hash128& key) const { __builtin_prefetch(&entries_[key.low & mask_]); }

  /// Precondition: the key is absent and there are fewer than max_entries.
  void Insert(const Hash128& key, std::uint32_t value) {
    std::size_t i = key.low & mask_;
    while (entries_[i].value != kNone) {
      i = (i + 1) & mask_;
    }
    entries_[i] = {key.low, static_cast<std::uint32_t>(key.high), value};
    ++size_;
  }

  /// Moves later entries of the probe run back, so that no tombstones pile up.
  void Erase(const Hash128& key) {
    std::size_t hole = key.low & mask_;
    while (entries_[hole].value != kNone &&
           !(entries_[hole].low == key.low &&
             entries_[hole].high == static_cast<std::uint32_t>(key.high))) {
      hole = (hole + 1) & mask_;
    }
    if (entries_[hole].value == kNone) {
      return;
    }
    for (std::size_t i = (hole + 1) & mask_; entries_[i].value != kNone; i = (i + 1) & mask_) {
      const std::size_t home = entries_[i].low & mask_;
      if (((i - home) & mask_) >= ((i - hole) & mask_)) {
        entries_[hole] = entries_[i];
        hole = i;
      }
    }
    entries_[hole] = Entry{};
    --size_;
  }

  std::size_t size() const { return size_; }

 private:
  struct Entry {
    std::uint64_t low = 0;
    std::uint32_t high = 0;
    std::uint32_t value = kNone;
  };

  std::vector<Entry> entries_;
  std::size_t mask_;
  std::size_t size_ = 0;
};

}  // namespace inferd::engine
