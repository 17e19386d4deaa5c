// SPDX-License-Identifier: Apache-2.0
// Listening sockets: TCP, or a Unix socket at a path.
#pragma once

#include "base/file.h"
#include "inferd/result.h"

#include <cstdint>
#include <string>

namespace inferd::api {

struct Listener {
  base::UniqueFd fd;       // non-blocking
  int family = 0;          // AF_INET, AF_INET6 or AF_UNIX
  std::uint16_t port = 0;  // that was got; 0 of a Unix socket
};

/// With `share`, several listeners may be opened on one port; the kernel deals connections out.
Result<Listener> ListenTcp(const std::string& host, std::uint16_t port, bool share);
/// Takes over the path of a server that is gone; refuses one that is in use or is another file.
Result<Listener> ListenUnix(const std::string& path);
/// The same socket once more, for another thread.
Result<Listener> Duplicate(const Listener& listener);

}  // namespace inferd::api
