// SPDX-License-Identifier: Apache-2.0
#include "text/marker_scan.h"

#include "text/dialect.h"
#include "text/white_space.h"

#include <algorithm>

namespace inferd::text {

void MarkerSet::Add(std::string_view marker, int event) {
  const std::string_view trimmed = Trim(marker);
  if (trimmed.empty()) {
    return;
  }
  markers_.push_back({std::string(trimmed), event});
  std::ranges::stable_sort(markers_, {}, [](const Marker& m) { return m.text.size(); });
  begins_[static_cast<unsigned char>(trimmed.front())] = true;
}

MarkerSet::Found MarkerSet::At(std::string_view text) const {
  Found found;
  for (const Marker& marker : markers_) {
    if (text.starts_with(marker.text)) {
      return {marker.event, marker.text.size(), false};
    }
    found.undecided |= text.size() < marker.text.size() && marker.text.starts_with(text);
  }
  return found;
}

}  // namespace inferd::text
