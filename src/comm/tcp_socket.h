// SPDX-License-Identifier: Apache-2.0
// Non-blocking TCP sockets and "host:port" endpoints with numeric addresses (no name is looked up
// here).
#pragma once

#include "base/file.h"
#include "inferd/result.h"

#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace inferd::comm {

/// An IPv4 or IPv6 address with its port.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;
};

/// "10.0.0.1" or "fe80::1" and a port.
Result<SocketAddress> ParseAddress(const std::string& host, std::uint16_t port);
/// "10.0.0.1:40123" or "[fe80::1]:40123".
Result<SocketAddress> ParseEndpoint(std::string_view endpoint);
std::string FormatEndpoint(const SocketAddress& address);

/// A listening socket on `address`; when the port is 0 the kernel chooses. The bound address comes
/// back in `address`.
Result<base::UniqueFd> Listen(SocketAddress& address);
/// A socket on its way to `address`: writable when it is connected or has failed (see
/// ConnectError).
Result<base::UniqueFd> StartConnect(const SocketAddress& address);
/// 0, or the errno with which the connection failed.
int ConnectError(int fd);
/// The next waiting connection, or an invalid fd when there is none.
base::UniqueFd Accept(int listener);

/// What came of a non-blocking read or write.
enum class Io { kProgress, kWouldBlock, kClosed };
/// Reads or writes what it can and moves `done`; kClosed on end of file and on every error.
Io ReadSome(int fd, std::byte* data, std::size_t bytes, std::size_t& done);
Io WriteSome(int fd, const std::byte* data, std::size_t bytes, std::size_t& done);

}  // namespace inferd::comm
