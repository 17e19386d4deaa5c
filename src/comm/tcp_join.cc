// SPDX-License-Identifier: Apache-2.0
// JoinTcp: a rank connects to all lower ranks and accepts all higher ones, both at once, until the
// mesh is whole.
#include "base/error.h"
#include "comm/arguments.h"
#include "comm/deadline.h"
#include "comm/tcp_communicator.h"
#include "comm/tcp_handshake.h"
#include "comm/tcp_listener.h"
#include "comm/tcp_socket.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

namespace inferd::comm {
namespace {

using std::chrono::milliseconds;

/// Strangers who connect and say nothing take at most this many places; the oldest loses its own.
constexpr std::size_t kMaxHandshakes = 64;
constexpr milliseconds kRetryFirst{5};
constexpr milliseconds kRetryMost{200};

/// The way to one lower rank: tries until it is in.
struct Dial {
  int rank = 0;
  SocketAddress address;
  std::unique_ptr<ClientHandshake> handshake;
  Deadline::Clock::time_point retry_at;
  milliseconds retry_after = kRetryFirst;
  std::string last_failure = "no answer";
};

class TcpJoin {
 public:
  TcpJoin(const GroupOptions& options,
          TcpListenerSocket& listener,
          std::span<const std::string> endpoints,
          std::string_view secret)
      : options_(options),
        listener_(listener),
        endpoints_(endpoints),
        secret_(secret),
        deadline_(options.join_deadline),
        peers_(endpoints.size()) {
    expected_.group = GroupDigest(options.id);
    expected_.generation = options.generation;
    expected_.to = static_cast<std::uint32_t>(options.rank);
    expected_.size = static_cast<std::uint32_t>(options.size);
  }

  Result<std::vector<std::unique_ptr<TcpPeer>>> Run() {
    INFERD_TRY(StartDials());
    ClaimParked();
    while (Missing() != 0) {
      if (deadline_.Passed()) {
        return Late();
      }
      INFERD_TRY(Step());
    }
    return std::move(peers_);
  }

 private:
  Result<> StartDials() {
    for (int r = 0; r < options_.rank; ++r) {
      Dial dial;
      dial.rank = r;
      INFERD_ASSIGN(dial.address, ParseEndpoint(endpoints_[static_cast<std::size_t>(r)]));
      dial.retry_at = Deadline::Clock::now();
      dials_.push_back(std::move(dial));
    }
    return {};
  }

  void ClaimParked() {
    for (int r = options_.rank + 1; r < options_.size; ++r) {
      Hello hello = expected_;
      hello.from = static_cast<std::uint32_t>(r);
      if (auto fd = listener_.Claim(hello)) {
        Adopt(r, *std::move(fd));
      }
    }
  }

  std::size_t Missing() const {
    const auto present =
        std::count_if(peers_.begin(), peers_.end(), [](const auto& p) { return p != nullptr; });
    return peers_.size() - 1 - static_cast<std::size_t>(present);
  }

  void Adopt(int rank, base::UniqueFd fd) {
    const auto r = static_cast<std::size_t>(rank);
    peers_[r] = std::make_unique<TcpPeer>(rank, endpoints_[r], std::move(fd));
  }

  Error Late() const {
    std::string names;
    for (std::size_t r = 0; r < peers_.size(); ++r) {
      if (peers_[r] != nullptr || r == static_cast<std::size_t>(options_.rank)) {
        continue;
      }
      names += fmt::format("{}rank {} at {}", names.empty() ? "" : ", ", r, endpoints_[r]);
      for (const Dial& dial : dials_) {
        if (static_cast<std::size_t>(dial.rank) == r) {
          names += fmt::format(" ({})", dial.last_failure);
        }
      }
    }
    return DeadlineExceeded(
        "join of group {}: {} is late; rank {} waited {} ms, turned away {} connections",
        options_.id,
        names,
        options_.rank,
        deadline_.allowed().count(),
        turned_away_);
  }

  /// One poll over the listener, the strangers and the dials.
  Result<> Step() {
    std::vector<pollfd> fds;
    fds.push_back({.fd = listener_.fd(), .events = POLLIN, .revents = 0});
    for (const auto& stranger : strangers_) {
      fds.push_back(Wanted(stranger->fd(), stranger->state()));
    }
    auto wake_at = deadline_.end();
    for (const auto& stranger : strangers_) {
      wake_at = std::min(wake_at, stranger->expires());
    }
    for (Dial& dial : dials_) {
      INFERD_TRY(Redial(dial));
      fds.push_back(dial.handshake ? Wanted(dial.handshake->fd(), dial.handshake->state())
                                   : pollfd{.fd = -1, .events = 0, .revents = 0});
      if (!dial.handshake) {
        wake_at = std::min(wake_at, dial.retry_at);
      }
    }
    const auto left = std::chrono::ceil<milliseconds>(wake_at - Deadline::Clock::now()).count();
    ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000)));

    const std::size_t num_strangers = strangers_.size();
    for (std::size_t i = 0; i < num_strangers; ++i) {
      if (fds[1 + i].revents != 0) {
        AdvanceStranger(*strangers_[i]);
      }
    }
    std::size_t at = 1 + num_strangers;
    for (Dial& dial : dials_) {
      if (fds[at++].revents != 0) {
        INFERD_TRY(AdvanceDial(dial));
      }
    }
    std::erase_if(dials_, [this](const Dial& dial) {
      return peers_[static_cast<std::size_t>(dial.rank)] != nullptr;
    });
    DropStrangers();
    if (fds[0].revents != 0) {
      AcceptAll();
    }
    return {};
  }

  static pollfd Wanted(int fd, HandshakeState state) {
    const short events = state == HandshakeState::kWriting ? POLLOUT : POLLIN;
    return {.fd = fd, .events = events, .revents = 0};
  }

  void AcceptAll() {
    while (strangers_.size() < 2 * kMaxHandshakes) {
      base::UniqueFd fd = Accept(listener_.fd());
      if (!fd.valid()) {
        break;
      }
      strangers_.push_back(std::make_unique<ServerHandshake>(std::move(fd), secret_));
      AdvanceStranger(*strangers_.back());
    }
    while (strangers_.size() > kMaxHandshakes) {
      strangers_.pop_front();
      ++turned_away_;
    }
  }

  void AdvanceStranger(ServerHandshake& stranger) {
    if (stranger.Advance(expected_) != HandshakeState::kDone) {
      return;
    }
    const Hello& hello = stranger.hello();
    if (hello.group == expected_.group && hello.generation == expected_.generation) {
      Adopt(static_cast<int>(hello.from), stranger.TakeFd());
    } else if (hello.group != expected_.group || hello.generation > expected_.generation) {
      listener_.Park(hello, stranger.TakeFd());
    }
  }

  void DropStrangers() {
    std::erase_if(strangers_, [this](const std::unique_ptr<ServerHandshake>& stranger) {
      const bool failed = stranger->state() == HandshakeState::kFailed || stranger->Expired();
      turned_away_ += stranger->state() != HandshakeState::kDone && failed ? 1 : 0;
      return failed || stranger->state() == HandshakeState::kDone;
    });
  }

  Result<> Redial(Dial& dial) {
    if (dial.handshake || Deadline::Clock::now() < dial.retry_at) {
      return {};
    }
    auto fd = StartConnect(dial.address);
    if (!fd.ok()) {
      Retry(dial, fd.error().message());
      return {};
    }
    Hello hello = expected_;
    hello.from = static_cast<std::uint32_t>(options_.rank);
    hello.to = static_cast<std::uint32_t>(dial.rank);
    dial.handshake = std::make_unique<ClientHandshake>(*std::move(fd), secret_, hello);
    return {};
  }

  static void Retry(Dial& dial, std::string why) {
    dial.last_failure = std::move(why);
    dial.handshake.reset();
    dial.retry_at = Deadline::Clock::now() + dial.retry_after;
    dial.retry_after = std::min(2 * dial.retry_after, kRetryMost);
  }

  Result<> AdvanceDial(Dial& dial) {
    switch (dial.handshake->Advance()) {
      case HandshakeState::kDone:
        Adopt(dial.rank, dial.handshake->TakeFd());
        return {};
      case HandshakeState::kFailed:
        if (dial.handshake->fatal()) {
          return Unauthenticated("join of group {}: rank {} at {}: {}",
                                 options_.id,
                                 dial.rank,
                                 endpoints_[static_cast<std::size_t>(dial.rank)],
                                 dial.handshake->failure());
        }
        Retry(dial, dial.handshake->failure());
        return {};
      default:
        return {};
    }
  }

  const GroupOptions& options_;
  TcpListenerSocket& listener_;
  const std::span<const std::string> endpoints_;
  const std::string_view secret_;
  const Deadline deadline_;
  Hello expected_;
  std::vector<std::unique_ptr<TcpPeer>> peers_;
  std::vector<Dial> dials_;
  std::deque<std::unique_ptr<ServerHandshake>> strangers_;
  std::size_t turned_away_ = 0;
};

}  // namespace

Result<std::unique_ptr<Communicator>> JoinTcp(const GroupOptions& options,
                                              TcpListener& listener,
                                              std::span<const std::string> endpoints,
                                              std::string_view secret) {
  INFERD_TRY(CheckGroup(options));
  if (endpoints.size() != static_cast<std::size_t>(options.size)) {
    return InvalidArgument("{} endpoints for a group of {}", endpoints.size(), options.size);
  }
  if (secret.empty()) {
    return InvalidArgument("the group has no secret; strangers could join it");
  }
  base::UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return ResourceExhausted("no eventfd: too many open files; raise ulimit -n");
  }
  TcpJoin join(options, static_cast<TcpListenerSocket&>(listener), endpoints, secret);
  INFERD_ASSIGN(auto peers, join.Run());
  return std::unique_ptr<Communicator>(
      std::make_unique<TcpCommunicator>(options, std::move(peers), std::move(wake)));
}

}  // namespace inferd::comm
