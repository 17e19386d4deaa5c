// SPDX-License-Identifier: Apache-2.0
#include "api/http/running_requests.h"

#include <utility>

namespace inferd::api {

void RunningRequests::Add(std::string_view name, IoThread* io, RequestKey key) {
  if (!name.empty()) {
    const std::lock_guard lock(mutex_);
    places_.emplace(name, Place{.io = io, .key = key});
  }
}

void RunningRequests::Remove(std::string_view name, IoThread* io, RequestKey key) {
  RemovePlace(name, {.io = io, .key = key});
}

Result<GenerationHost::Ticket> RunningRequests::Submit(GenerationHost* host,
                                                       std::unique_ptr<Generation> generation,
                                                       GenerationListener* listener,
                                                       const std::vector<std::string>& names) {
  const std::lock_guard lock(mutex_);
  auto ticket = host->Submit(std::move(generation), listener);
  if (ticket.ok()) {
    for (const std::string& name : names) {
      places_.emplace(name, Place{.host = host, .ticket = *ticket});
    }
  }
  return ticket;
}

void RunningRequests::Remove(std::string_view name,
                             GenerationHost* host,
                             GenerationHost::Ticket ticket) {
  RemovePlace(name, {.host = host, .ticket = ticket});
}

void RunningRequests::RemovePlace(std::string_view name, const Place& place) {
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = places_.equal_range(std::string(name));
  for (auto it = begin; it != end; ++it) {
    if (it->second == place) {
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
    const Place& place = it->second;
    if (place.host != nullptr) {
      place.host->Cancel(place.ticket);
    } else {
      place.io->Post([io = place.io, key = place.key] { io->Abort(key); });
    }
  }
  return count;
}

}  // namespace inferd::api
