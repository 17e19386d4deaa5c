// SPDX-License-Identifier: Apache-2.0
// The listener behind TcpListener, with the authenticated connections that came before their
// group's join.
#pragma once

#include "base/file.h"
#include "comm/communicator.h"
#include "comm/tcp_handshake.h"

#include <deque>
#include <optional>
#include <string>

namespace inferd::comm {

/// One join at a time. A worker that is in several groups joins them in turn; a peer that is
/// already at the next group may knock early, and is kept here.
class TcpListenerSocket final : public TcpListener {
 public:
  TcpListenerSocket(base::UniqueFd fd, std::string endpoint)
      : fd_(std::move(fd)), endpoint_(std::move(endpoint)) {}

  const std::string& endpoint() const override { return endpoint_; }
  int fd() const { return fd_.get(); }

  /// Keeps an authenticated connection of another group; at most kMaxParked, the oldest goes first.
  void Park(const Hello& hello, base::UniqueFd fd);
  /// The newest connection parked under exactly this hello; drops what earlier generations of the
  /// group left.
  std::optional<base::UniqueFd> Claim(const Hello& hello);

 private:
  static constexpr std::size_t kMaxParked = 128;
  struct Parked {
    Hello hello;
    base::UniqueFd fd;
  };

  base::UniqueFd fd_;
  const std::string endpoint_;
  std::deque<Parked> parked_;
};

}  // namespace inferd::comm
