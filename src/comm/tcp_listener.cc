// SPDX-License-Identifier: Apache-2.0
// ListenTcp and the parking of early connections.
#include "comm/tcp_listener.h"

#include "base/error.h"
#include "comm/tcp_socket.h"

#include <netinet/in.h>

#include <algorithm>
#include <utility>

namespace inferd::comm {
namespace {

bool IsWildcard(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    return IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr);
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
  return v4->sin_addr.s_addr == htonl(INADDR_ANY);
}

}  // namespace

void TcpListenerSocket::Park(const Hello& hello, base::UniqueFd fd) {
  if (parked_.size() >= kMaxParked) {
    parked_.pop_front();
  }
  parked_.push_back({hello, std::move(fd)});
}

std::optional<base::UniqueFd> TcpListenerSocket::Claim(const Hello& hello) {
  std::erase_if(parked_, [&](const Parked& parked) {
    return parked.hello.group == hello.group && parked.hello.generation < hello.generation;
  });
  std::optional<base::UniqueFd> claimed;
  for (Parked& parked : parked_) {
    if (parked.hello == hello) {
      claimed = std::move(parked.fd);
    }
  }
  std::erase_if(parked_, [&](const Parked& parked) { return parked.hello == hello; });
  return claimed;
}

Result<std::unique_ptr<TcpListener>> ListenTcp(const std::string& address) {
  INFERD_ASSIGN(auto bound, ParseAddress(address, 0));
  if (IsWildcard(bound)) {
    return InvalidArgument(
        "data sockets must not listen on all interfaces ({}); name the address of this "
        "host that the other ranks reach",
        address);
  }
  INFERD_ASSIGN(auto fd, Listen(bound));
  return std::unique_ptr<TcpListener>(
      std::make_unique<TcpListenerSocket>(std::move(fd), FormatEndpoint(bound)));
}

}  // namespace inferd::comm
