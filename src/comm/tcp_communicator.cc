// SPDX-License-Identifier: Apache-2.0
// Collectives over the mesh. All ranks receive the same addends and add them in rank order, so all
// get the same bits.
#include "comm/tcp_communicator.h"

#include "base/error.h"
#include "comm/arguments.h"
#include "comm/reduce.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace inferd::comm {
namespace {

/// A whole vector to everyone up to here, slices above: 2 (R - 1) / R of the bytes, but two
/// latencies.
constexpr std::size_t kDirectBytes = 16U << 10;
/// A wait tries the sockets for this long before it sleeps in poll.
constexpr std::chrono::microseconds kBusyPoll{40};
/// Slices are whole cache lines of floats.
constexpr std::size_t kSliceFloats = 16;

}  // namespace

std::string_view TcpCommunicator::Name(Op op) {
  switch (op) {
    case Op::kMessage:
      return "message";
    case Op::kAllReduce:
      return "all_reduce";
    case Op::kAllGather:
      return "all_gather";
    case Op::kAllToAllV:
      return "all_to_all_v";
    case Op::kBroadcast:
      return "broadcast";
    case Op::kBarrier:
      return "barrier";
  }
  return "call";
}

TcpCommunicator::TcpCommunicator(const GroupOptions& options,
                                 std::vector<std::unique_ptr<TcpPeer>> peers,
                                 base::UniqueFd wake)
    : options_(options), peers_(std::move(peers)), wake_(std::move(wake)) {}

Result<> TcpCommunicator::Run(std::string_view name,
                              const std::function<Result<>(const Deadline&)>& call) {
  const std::lock_guard lock(mutex_);
  if (broken_) {
    return broken_->WithContext(name);
  }
  auto done = call(Deadline(options_.call_deadline));
  if (!done.ok()) {
    Break(done.error());
    return done.error().WithContext(name);
  }
  return {};
}

void TcpCommunicator::Break(const Error& error) {
  broken_ = error;
  FrameHeader fault;
  fault.kind = FrameKind::kFault;
  fault.op = static_cast<std::uint8_t>(error.code());
  fault.root = static_cast<std::uint16_t>(culprit_);
  for (const auto& peer : peers_) {
    if (peer) {
      peer->SendFaultAndShutdown(fault);
    }
  }
}

void TcpCommunicator::Abort() {
  aborted_ = true;
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then it is readable anyway.
  static_cast<void>(::write(wake_.get(), &one, sizeof one) == 0);
  const std::lock_guard lock(mutex_);
  if (!broken_) {
    culprit_ = rank();
    Break(Aborted("rank {} aborted the group", rank()));
  }
}

Result<bool> TcpCommunicator::Advance() {
  bool idle = true;
  for (const auto& peer : peers_) {
    if (!peer) {
      continue;
    }
    Result<> moved;
    if (peer->sending()) {
      moved = peer->Write();
    }
    if (moved.ok() && peer->receiving()) {
      moved = peer->Read();
    }
    if (!moved.ok()) {
      culprit_ = peer->blamed();
      return std::move(moved).error();
    }
    idle = idle && !peer->sending() && !peer->receiving();
  }
  return idle;
}

Error TcpCommunicator::Late(const Deadline& deadline) const {
  std::string names;
  for (const auto& peer : peers_) {
    if (peer && (peer->receiving() || peer->sending())) {
      names +=
          fmt::format("{}rank {} at {}", names.empty() ? "" : ", ", peer->rank(), peer->endpoint());
    }
  }
  return DeadlineExceeded(
      "{} is late; rank {} waited {} ms", names, rank(), deadline.allowed().count());
}

Result<> TcpCommunicator::Sleep(const Deadline& deadline) {
  std::array<pollfd, kMaxRanks + 1> fds;
  nfds_t count = 0;
  fds[count++] = {.fd = wake_.get(), .events = POLLIN, .revents = 0};
  for (const auto& peer : peers_) {
    if (peer && (peer->sending() || peer->wants_bytes())) {
      const int events = (peer->sending() ? POLLOUT : 0) | (peer->wants_bytes() ? POLLIN : 0);
      fds[count++] = {.fd = peer->fd(), .events = static_cast<short>(events), .revents = 0};
    }
  }
  constexpr int kLongestSleepMs = 60'000;
  const int ready = ::poll(fds.data(), count, deadline.LeftMs(kLongestSleepMs));
  if (aborted_) {
    culprit_ = rank();
    return Aborted("rank {} aborted the group", rank());
  }
  if (ready == 0 && deadline.Passed()) {
    for (const auto& peer : peers_) {
      if (peer && (peer->receiving() || peer->sending())) {
        culprit_ = peer->rank();
        break;
      }
    }
    return Late(deadline);
  }
  return {};
}

Result<> TcpCommunicator::ListenToIdle() {
  for (const auto& peer : peers_) {
    if (peer && !peer->receiving() && peer->wants_bytes()) {
      if (auto read = peer->Read(); !read.ok()) {
        culprit_ = peer->blamed();
        return read;
      }
    }
  }
  return {};
}

Result<> TcpCommunicator::Complete(const Deadline& deadline) {
  const auto busy_until = Deadline::Clock::now() + kBusyPoll;
  bool slept = false;
  while (true) {
    INFERD_ASSIGN(const bool done, Advance());
    if (done) {
      return {};
    }
    if (slept) {
      // After Advance: what finishes this call comes before what a peer has to say about the next
      // one.
      INFERD_TRY(ListenToIdle());
    }
    if (!aborted_ && Deadline::Clock::now() < busy_until) {
      ::sched_yield();
      continue;
    }
    INFERD_TRY(Sleep(deadline));
    slept = true;
  }
}

template <class Out, class Into>
Result<> TcpCommunicator::Exchange(Op op, const Deadline& deadline, Out out, Into into) {
  FrameHeader header;
  header.kind = FrameKind::kCollective;
  header.op = static_cast<std::uint8_t>(op);
  header.call = ++call_;
  for (const auto& peer : peers_) {
    if (peer) {
      const std::span<std::byte> place = into(static_cast<std::size_t>(peer->rank()));
      header.bytes = place.size();
      peer->StartRecv(header, place);
      const std::span<const std::byte> payload = out(static_cast<std::size_t>(peer->rank()));
      header.bytes = payload.size();
      peer->StartSend(header, payload);
    }
  }
  return Complete(deadline);
}

float* TcpCommunicator::Scratch(std::size_t floats) {
  if (scratch_.size() < floats) {
    scratch_.resize(floats);
  }
  return scratch_.data();
}

Result<> TcpCommunicator::Barrier() {
  return Run(Name(Op::kBarrier), [&](const Deadline& deadline) {
    const auto nothing = [](std::size_t) { return std::span<std::byte>(); };
    return Exchange(Op::kBarrier, deadline, nothing, nothing);
  });
}

Result<> TcpCommunicator::CheckPeers() {
  return Run("peers", [this](const Deadline&) -> Result<> {
    INFERD_TRY(ListenToIdle());
    for (const auto& peer : peers_) {
      if (peer && peer->ended()) {
        culprit_ = peer->rank();
        return Unavailable("rank {} at {} is gone", peer->rank(), peer->endpoint());
      }
    }
    return {};
  });
}

Result<> TcpCommunicator::AllReduceSum(std::span<float> data) {
  return Run(Name(Op::kAllReduce), [&](const Deadline& deadline) -> Result<> {
    if (data.empty() || size() == 1) {
      return {};
    }
    const bool direct = size() == 2 || data.size_bytes() <= kDirectBytes;
    const std::size_t chunk = options_.chunk_bytes / sizeof(float);
    for (std::size_t at = 0; at < data.size(); at += chunk) {
      const auto part = data.subspan(at, std::min(chunk, data.size() - at));
      INFERD_TRY(direct ? ReduceDirect(part, deadline) : ReduceInSlices(part, deadline));
    }
    return {};
  });
}

Result<> TcpCommunicator::ReduceDirect(std::span<float> data, const Deadline& deadline) {
  const std::size_t n = data.size();
  const auto ranks = static_cast<std::size_t>(size());
  float* const scratch = Scratch(ranks * n);
  INFERD_TRY(Exchange(
      Op::kAllReduce,
      deadline,
      [&](std::size_t) { return std::as_bytes(data); },
      [&](std::size_t r) { return std::as_writable_bytes(std::span(scratch + r * n, n)); }));
  std::array<const float*, kMaxRanks> sources;
  for (std::size_t r = 0; r < ranks; ++r) {
    sources[r] = r == static_cast<std::size_t>(rank()) ? data.data() : scratch + r * n;
  }
  SumInRankOrder(data.data(), {sources.data(), ranks}, n);
  return {};
}

Result<> TcpCommunicator::ReduceInSlices(std::span<float> data, const Deadline& deadline) {
  const auto ranks = static_cast<std::size_t>(size());
  const auto self = static_cast<std::size_t>(rank());
  const std::size_t lines = (data.size() + kSliceFloats - 1) / kSliceFloats;
  const auto slice = [&](std::size_t r) {
    const std::size_t from = std::min(lines * r / ranks * kSliceFloats, data.size());
    const std::size_t to = std::min(lines * (r + 1) / ranks * kSliceFloats, data.size());
    return data.subspan(from, to - from);
  };
  const std::span<float> own = slice(self);
  float* const scratch = Scratch(ranks * own.size());
  INFERD_TRY(Exchange(
      Op::kAllReduce,
      deadline,
      [&](std::size_t r) { return std::as_bytes(slice(r)); },
      [&](std::size_t r) {
        return std::as_writable_bytes(std::span(scratch + r * own.size(), own.size()));
      }));
  std::array<const float*, kMaxRanks> sources;
  for (std::size_t r = 0; r < ranks; ++r) {
    sources[r] = r == self ? own.data() : scratch + r * own.size();
  }
  SumInRankOrder(own.data(), {sources.data(), ranks}, own.size());
  return Exchange(
      Op::kAllReduce,
      deadline,
      [&](std::size_t) { return std::as_bytes(own); },
      [&](std::size_t r) { return std::as_writable_bytes(slice(r)); });
}

Result<> TcpCommunicator::AllGather(std::span<const float> in,
                                    std::span<float> out,
                                    std::span<const std::size_t> counts) {
  INFERD_TRY(CheckAllGather(in, out, counts, rank(), size()));
  return Run(Name(Op::kAllGather), [&](const Deadline& deadline) {
    std::array<std::size_t, kMaxRanks> at;
    std::size_t total = 0;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      at[r] = total;
      total += counts[r];
    }
    std::copy(in.begin(), in.end(), out.data() + at[static_cast<std::size_t>(rank())]);
    return Exchange(
        Op::kAllGather,
        deadline,
        [&](std::size_t) { return std::as_bytes(in); },
        [&](std::size_t r) { return std::as_writable_bytes(out.subspan(at[r], counts[r])); });
  });
}

Result<> TcpCommunicator::AllToAllV(std::span<const std::byte> send,
                                    std::span<const std::size_t> send_bytes,
                                    std::span<std::byte> recv,
                                    std::span<const std::size_t> recv_bytes) {
  INFERD_TRY(CheckAllToAllV(send, send_bytes, recv, recv_bytes, rank(), size()));
  return Run(Name(Op::kAllToAllV), [&](const Deadline& deadline) {
    std::array<std::size_t, kMaxRanks> send_at;
    std::array<std::size_t, kMaxRanks> recv_at;
    std::size_t send_total = 0;
    std::size_t recv_total = 0;
    for (std::size_t r = 0; r < send_bytes.size(); ++r) {
      send_at[r] = send_total;
      recv_at[r] = recv_total;
      send_total += send_bytes[r];
      recv_total += recv_bytes[r];
    }
    const auto self = static_cast<std::size_t>(rank());
    CopyBytes(recv.data() + recv_at[self], send.data() + send_at[self], send_bytes[self]);
    return Exchange(
        Op::kAllToAllV,
        deadline,
        [&](std::size_t r) { return send.subspan(send_at[r], send_bytes[r]); },
        [&](std::size_t r) { return recv.subspan(recv_at[r], recv_bytes[r]); });
  });
}

Result<> TcpCommunicator::Broadcast(std::span<std::byte> data, int root) {
  INFERD_TRY(CheckRoot(root, size()));
  return Run(Name(Op::kBroadcast), [&](const Deadline& deadline) {
    FrameHeader header;
    header.kind = FrameKind::kCollective;
    header.op = static_cast<std::uint8_t>(Op::kBroadcast);
    header.root = static_cast<std::uint16_t>(root);
    header.call = ++call_;
    header.bytes = data.size();
    for (const auto& peer : peers_) {
      if (peer && rank() == root) {
        peer->StartSend(header, data);
      } else if (peer && peer->rank() == root) {
        peer->StartRecv(header, data);
      }
    }
    return Complete(deadline);
  });
}

Result<> TcpCommunicator::Send(std::span<const std::byte> data, int to) {
  INFERD_TRY(CheckPeer("send to", to, rank(), size()));
  return Run("send", [&](const Deadline& deadline) {
    FrameHeader header;
    header.bytes = data.size();
    peers_[static_cast<std::size_t>(to)]->StartSend(header, data);
    return Complete(deadline);
  });
}

Result<> TcpCommunicator::Recv(std::span<std::byte> data, int from) {
  INFERD_TRY(CheckPeer("receive from", from, rank(), size()));
  return Run("recv", [&](const Deadline& deadline) {
    FrameHeader header;
    header.bytes = data.size();
    peers_[static_cast<std::size_t>(from)]->StartRecv(header, data);
    return Complete(deadline);
  });
}

}  // namespace inferd::comm
