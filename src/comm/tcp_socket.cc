// SPDX-License-Identifier: Apache-2.0
// Sockets behind Results. Every socket is non-blocking, close-on-exec and sends small frames at
// once.
#include "comm/tcp_socket.h"

#include "base/error.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace inferd::comm {
namespace {

constexpr int kBacklog = 128;

sockaddr* Raw(SocketAddress& address) { return reinterpret_cast<sockaddr*>(&address.storage); }
const sockaddr* Raw(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

void SetNoDelay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Error SocketError(std::string_view what, const SocketAddress& address) {
  return Unavailable("{} {}: {}", what, FormatEndpoint(address), ::strerrordesc_np(errno));
}

Result<base::UniqueFd> NewSocket(const SocketAddress& address) {
  base::UniqueFd fd(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return SocketError("no socket for", address);
  }
  return fd;
}

}  // namespace

Result<SocketAddress> ParseAddress(const std::string& host, std::uint16_t port) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.length = sizeof *v4;
    return address;
  }
  if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.length = sizeof *v6;
    return address;
  }
  return InvalidArgument("'{}' is not a numeric IPv4 or IPv6 address", host);
}

Result<SocketAddress> ParseEndpoint(std::string_view endpoint) {
  const std::size_t colon = endpoint.rfind(':');
  if (colon == std::string_view::npos) {
    return InvalidArgument("endpoint '{}' is not address:port", endpoint);
  }
  std::string_view host = endpoint.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const std::string_view digits = endpoint.substr(colon + 1);
  std::uint16_t port = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size() || port == 0) {
    return InvalidArgument("endpoint '{}' has no port between 1 and 65535", endpoint);
  }
  return ParseAddress(std::string(host), port);
}

std::string FormatEndpoint(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (address.storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
    return fmt::format("[{}]:{}", text.data(), ntohs(v6->sin6_port));
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
  ::inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size());
  return fmt::format("{}:{}", text.data(), ntohs(v4->sin_port));
}

Result<base::UniqueFd> Listen(SocketAddress& address) {
  INFERD_ASSIGN(auto fd, NewSocket(address));
  if (::bind(fd.get(), Raw(address), address.length) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return SocketError("cannot listen on", address);
  }
  address.length = sizeof address.storage;
  if (::getsockname(fd.get(), Raw(address), &address.length) != 0) {
    return SocketError("cannot listen on", address);
  }
  return fd;
}

Result<base::UniqueFd> StartConnect(const SocketAddress& address) {
  INFERD_ASSIGN(auto fd, NewSocket(address));
  SetNoDelay(fd.get());
  if (::connect(fd.get(), Raw(address), address.length) != 0 && errno != EINPROGRESS) {
    return SocketError("cannot connect to", address);
  }
  return fd;
}

int ConnectError(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

base::UniqueFd Accept(int listener) {
  while (true) {
    base::UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      SetNoDelay(fd.get());
      return fd;
    }
    if (errno != EINTR && errno != ECONNABORTED) {
      return fd;
    }
  }
}

namespace {

Io Classify(ssize_t n, std::size_t& done) {
  if (n > 0) {
    done += static_cast<std::size_t>(n);
    return Io::kProgress;
  }
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? Io::kWouldBlock
                                                                              : Io::kClosed;
}

}  // namespace

Io ReadSome(int fd, std::byte* data, std::size_t bytes, std::size_t& done) {
  return Classify(::recv(fd, data + done, bytes - done, MSG_DONTWAIT), done);
}

Io WriteSome(int fd, const std::byte* data, std::size_t bytes, std::size_t& done) {
  return Classify(::send(fd, data + done, bytes - done, MSG_DONTWAIT | MSG_NOSIGNAL), done);
}

}  // namespace inferd::comm
