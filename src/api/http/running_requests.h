// SPDX-License-Identifier: Apache-2.0
// The generations that run, whichever port they came by, under the names by which they may be
// ended: the request's X-Request-Id and the id of its reply.
#pragma once

#include "api/core/generation_host.h"
#include "api/http/io_thread.h"
#include "inferd/result.h"

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace inferd::api {

/// Any thread. I/O threads and hosts outlive what they have added. Clients choose names, so several
/// generations may have the same one.
class RunningRequests {
 public:
  void Add(std::string_view name, IoThread* io, RequestKey key);
  void Remove(std::string_view name, IoThread* io, RequestKey key);

  /// Submits to the host with the table locked, so that whoever sees the generation run finds it
  /// here.
  Result<GenerationHost::Ticket> Submit(GenerationHost* host,
                                        std::unique_ptr<Generation> generation,
                                        GenerationListener* listener,
                                        const std::vector<std::string>& names);
  void Remove(std::string_view name, GenerationHost* host, GenerationHost::Ticket ticket);

  /// Ends all generations of that name soon; how many there are.
  std::size_t Abort(std::string_view name);

 private:
  /// On an I/O thread or on a host.
  struct Place {
    IoThread* io = nullptr;
    RequestKey key = {};
    GenerationHost* host = nullptr;
    GenerationHost::Ticket ticket = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  void RemovePlace(std::string_view name, const Place& place);

  std::mutex mutex_;
  std::unordered_multimap<std::string, Place> places_;
};

}  // namespace inferd::api
