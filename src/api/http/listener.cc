// SPDX-License-Identifier: Apache-2.0
#include "api/http/listener.h"

#include "base/error.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace inferd::api {
namespace {

constexpr int kBacklog = 4096;

base::UniqueFd Open(int family) {
  return base::UniqueFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

Result<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return InvalidArgument("--uds {} has {} bytes; the path of a Unix socket has at most {}",
                           path,
                           path.size(),
                           sizeof address.sun_path - 1);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

/// Removes the socket of a server that is gone.
Result<> ClearPath(const std::string& path, const sockaddr_un& address) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    return {};
  }
  if (!S_ISSOCK(info.st_mode)) {
    return InvalidArgument("--uds {} is there and is no socket; remove it or choose another", path);
  }
  const base::UniqueFd probe = Open(AF_UNIX);
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
      errno != ECONNREFUSED) {
    return FailedPrecondition("cannot listen on {}: another server uses it; choose another --uds",
                              path);
  }
  unlink(path.c_str());
  return {};
}

}  // namespace

Result<Listener> ListenTcp(const std::string& host, std::uint16_t port, bool share) {
  const std::string numeric = host == "localhost" ? "127.0.0.1" : host;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  const bool is_v4 = inet_pton(AF_INET, numeric.c_str(), &v4.sin_addr) == 1;
  if (!is_v4 && inet_pton(AF_INET6, numeric.c_str(), &v6.sin6_addr) != 1) {
    return InvalidArgument("--host {} is not an IP address; use 127.0.0.1, 0.0.0.0 or ::", host);
  }
  auto* const address = is_v4 ? reinterpret_cast<sockaddr*>(&v4) : reinterpret_cast<sockaddr*>(&v6);
  socklen_t size = is_v4 ? sizeof v4 : sizeof v6;
  Listener listener{Open(address->sa_family), address->sa_family, 0};
  const int fd = listener.fd.get();
  const int one = 1;
  const bool good = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                    (!share || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) == 0) &&
                    bind(fd, address, size) == 0 && listen(fd, kBacklog) == 0 &&
                    getsockname(fd, address, &size) == 0;
  if (!good) {
    return FailedPrecondition(
        "cannot listen on {}:{}: {}; choose another --port or stop what uses it",
        host,
        port,
        std::strerror(errno));
  }
  listener.port = ntohs(is_v4 ? v4.sin_port : v6.sin6_port);
  return listener;
}

Result<Listener> ListenUnix(const std::string& path) {
  INFERD_ASSIGN(const sockaddr_un address, UnixAddress(path));
  INFERD_TRY(ClearPath(path, address));
  Listener listener{Open(AF_UNIX), AF_UNIX, 0};
  const int fd = listener.fd.get();
  if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd, kBacklog) != 0) {
    return FailedPrecondition(
        "cannot listen on {}: {}; choose another --uds", path, std::strerror(errno));
  }
  return listener;
}

Result<Listener> Duplicate(const Listener& listener) {
  Listener copy{
      base::UniqueFd(fcntl(listener.fd.get(), F_DUPFD_CLOEXEC, 0)), listener.family, listener.port};
  if (!copy.fd.valid()) {
    return Unavailable("cannot share a listening socket: {}", std::strerror(errno));
  }
  return copy;
}

}  // namespace inferd::api
