// SPDX-License-Identifier: Apache-2.0
#include "store/range_set.h"

#include <algorithm>
#include <iterator>

namespace inferd::store {

void RangeSet::Add(ByteRange range) {
  if (range.size() <= 0) {
    return;
  }
  auto place = ends_.upper_bound(range.begin);
  if (place != ends_.begin() && std::prev(place)->second >= range.begin) {
    --place;
    range.begin = place->first;
  }
  while (place != ends_.end() && place->first <= range.end) {
    range.end = std::max(range.end, place->second);
    place = ends_.erase(place);
  }
  ends_.emplace_hint(place, range.begin, range.end);
}

std::int64_t RangeSet::EndFrom(std::int64_t begin) const {
  const auto after = ends_.upper_bound(begin);
  return after == ends_.begin() ? begin : std::max(begin, std::prev(after)->second);
}

bool RangeSet::Contains(ByteRange range) const {
  return range.size() <= 0 || EndFrom(range.begin) >= range.end;
}

std::vector<ByteRange> RangeSet::Missing(ByteRange within) const {
  std::vector<ByteRange> missing;
  std::int64_t at = EndFrom(within.begin);
  while (at < within.end) {
    const auto next = ends_.upper_bound(at);
    const std::int64_t end = next == ends_.end() ? within.end : std::min(within.end, next->first);
    missing.push_back({at, end});
    at = next == ends_.end() ? within.end : next->second;
  }
  return missing;
}

std::int64_t RangeSet::Total() const {
  std::int64_t total = 0;
  for (const auto& [begin, end] : ends_) {
    total += end - begin;
  }
  return total;
}

std::vector<ByteRange> CutRanges(const std::vector<ByteRange>& ranges, std::int64_t piece) {
  std::vector<ByteRange> pieces;
  for (const ByteRange& range : ranges) {
    for (std::int64_t begin = range.begin; begin < range.end;) {
      const std::int64_t end = std::min(range.end, (begin / piece + 1) * piece);
      pieces.push_back({begin, end});
      begin = end;
    }
  }
  return pieces;
}

}  // namespace inferd::store
