// SPDX-License-Identifier: Apache-2.0
// The generations that run, by the names under which a client may end them: the request's
// X-Request-Id and the id of its reply.
#pragma once

#include "api/http/io_thread.h"

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace inferd::api {

/// Any thread. An I/O thread outlives what it has added.
class RunningRequests {
 public:
  void Add(std::string_view name, IoThread* io, RequestKey key);
  void Remove(std::string_view name, IoThread* io, RequestKey key);
  /// Ends all generations of that name soon; how many there are.
  std::size_t Abort(std::string_view name);

 private:
  struct Place {
    IoThread* io;
    RequestKey key;
  };
  std::mutex mutex_;
  std::unordered_multimap<std::string, Place> places_;
};

}  // namespace inferd::api
