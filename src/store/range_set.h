// SPDX-License-Identifier: Apache-2.0
// Which bytes of a file are there. Included by .cc files of this room and its tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace inferd::store {

/// Bytes [begin, end).
struct ByteRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

/// Ranges that neither overlap nor touch. Not thread-safe.
class RangeSet {
 public:
  /// An empty range adds nothing.
  void Add(ByteRange range);
  bool Contains(ByteRange range) const;
  /// What of `within` is not there, in order.
  std::vector<ByteRange> Missing(ByteRange within) const;
  /// The end of what is there without a gap from `begin` on; `begin` if that byte is not there.
  std::int64_t EndFrom(std::int64_t begin) const;
  /// Bytes in all.
  std::int64_t Total() const;
  std::size_t size() const { return ends_.size(); }

 private:
  std::map<std::int64_t, std::int64_t> ends_;  // begin → end
};

/// Cuts ranges into pieces of at most `piece` bytes that end at multiples of it.
std::vector<ByteRange> CutRanges(const std::vector<ByteRange>& ranges, std::int64_t piece);

}  // namespace inferd::store
