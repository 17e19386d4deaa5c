// SPDX-License-Identifier: Apache-2.0
#include "api/http/running_requests.h"

namespace inferd::api {

void RunningRequests::Add(std::string_view name, IoThread* io, RequestKey key) {
  if (!name.empty()) {
    const std::lock_guard lock(mutex_);
    places_.emplace(name, Place{io, key});
  }
}

void RunningRequests::Remove(std::string_view name, IoThread* io, RequestKey key) {
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = places_.equal_range(std::string(name));
  for (auto it = begin; it != end; ++it) {
    if (it->second.io == io && it->second.key.connection == key.connection &&
        it->second.key.serial == key.serial) {
      places_.erase(it);
      return;
    }
  }
}

std::size_t RunningRequests::Abort(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = places_.equal_range(std::string(name));
  std::size_t count = 0;
  for (auto it = begin; it != end; ++it, ++count) {
    it->second.io->Post([place = it->second] { place.io->Abort(place.key); });
  }
  return count;
}

}  // namespace inferd::api
