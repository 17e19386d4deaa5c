// SPDX-License-Identifier: Apache-2.0
// Phases and collectives of the shared-memory backend; the rings are in shm_ring.cc, the start in
// shm_join.cc.
#include "comm/shm_communicator.h"

#include "base/error.h"
#include "comm/arguments.h"
#include "comm/reduce.h"
#include "comm/shm_copy.h"

#include <algorithm>
#include <utility>

namespace inferd::comm {
namespace {

/// One-shot reads size x n bytes after one phase, two-shot 2 n after two: below this size the phase
/// costs more, and between two ranks at any. Measured with tests/bench/comm_bench.
constexpr std::size_t kOneShotBytes = 32U << 10;
/// Slices are whole cache lines of floats.
constexpr std::size_t kSliceFloats = 16;

std::size_t DivideUp(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

}  // namespace

std::string_view ShmCommunicator::Name(Op op) {
  switch (op) {
    case Op::kJoin:
      return "join";
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
    case Op::kSend:
      return "send";
    case Op::kRecv:
      return "recv";
  }
  return "call";
}

ShmCommunicator::ShmCommunicator(ShmSegment segment, const GroupOptions& options)
    : options_(options),
      layout_(options.size, ChunkBytes(options)),
      segment_(std::move(segment)),
      waiter_(segment_, options.rank, options.size) {}

RankLine& ShmCommunicator::Line(int r) const {
  return reinterpret_cast<RankLine*>(segment_.data() + layout_.lines)[r];
}

std::byte* ShmCommunicator::Buffer(int r, std::uint32_t phase) const {
  return segment_.data() + layout_.BufferOffset(r, phase);
}

Ring& ShmCommunicator::RingOf(int from, int to) const {
  return reinterpret_cast<Ring*>(segment_.data() + layout_.rings)[layout_.PairIndex(from, to)];
}

void ShmCommunicator::WakeGroup() {
  for (int r = 0; r < size(); ++r) {
    WakeAll(Line(r).phase);
    for (int to = 0; to < size(); ++to) {
      WakeAll(RingOf(r, to).head.value);
      WakeAll(RingOf(r, to).tail.value);
    }
  }
}

Error ShmCommunicator::Break(Error error, int culprit) {
  waiter_.SetFault({.code = error.code(), .culprit = culprit, .reporter = rank()});
  WakeGroup();
  return error;
}

void ShmCommunicator::Abort() {
  waiter_.SetFault({.code = Code::kAborted, .culprit = rank(), .reporter = rank()});
  WakeGroup();
}

Result<> ShmCommunicator::BeginCollective(Op op) {
  if (waiter_.Broken()) {
    return waiter_.BrokenError(Name(op));
  }
  if (!buffers_committed_) {
    auto committed = segment_.Commit(layout_.BufferOffset(rank(), 0), 2 * layout_.chunk_bytes);
    if (!committed.ok()) {
      return Break(std::move(committed).error(), rank());
    }
    buffers_committed_ = true;
  }
  return {};
}

Result<> ShmCommunicator::Phase(Op op, CallMark mark, const Deadline& deadline) {
  const std::uint32_t phase = ++phase_;
  mark.op = static_cast<std::uint16_t>(op);
  RankLine& own = Line(rank());
  own.mark[phase & 1U] = mark;
  RaiseSignal(own.phase, own.parked, phase);
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) {
      continue;
    }
    RankLine& line = Line(r);
    auto arrived = waiter_.AwaitAtLeast(line.phase, line.parked, phase, r, deadline, Name(op));
    if (!arrived.ok()) {
      WakeGroup();
      return arrived;
    }
    const CallMark& theirs = line.mark[phase & 1U];
    if (theirs.op != mark.op || theirs.root != mark.root || theirs.bytes != mark.bytes) {
      return Break(
          Internal("rank {} is in {} of {} bytes (root {}), rank {} in {} of {} (root {}); "
                   "all ranks must make the same calls",
                   r,
                   Name(static_cast<Op>(theirs.op)),
                   theirs.bytes,
                   theirs.root,
                   rank(),
                   Name(op),
                   mark.bytes,
                   mark.root),
          r);
    }
  }
  return {};
}

Result<> ShmCommunicator::Barrier() {
  INFERD_TRY(BeginCollective(Op::kBarrier));
  return Phase(Op::kBarrier, {}, Deadline(options_.call_deadline));
}

Result<> ShmCommunicator::CheckPeers() {
  if (waiter_.Broken()) {
    return waiter_.BrokenError("peers");
  }
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && !segment_.Present(r)) {
      return Break(Unavailable("rank {} is gone", r), r);
    }
  }
  return {};
}

Result<> ShmCommunicator::AllReduceSum(std::span<float> data) {
  INFERD_TRY(BeginCollective(Op::kAllReduce));
  if (data.empty() || size() == 1) {
    return {};
  }
  const Deadline deadline(options_.call_deadline);
  const bool one_shot = size() == 2 || data.size_bytes() <= kOneShotBytes;
  const std::size_t chunk = layout_.chunk_bytes / sizeof(float);
  for (std::size_t done = 0; done < data.size(); done += chunk) {
    const std::span<float> part = data.subspan(done, std::min(chunk, data.size() - done));
    INFERD_TRY(one_shot ? OneShot(part, deadline) : TwoShot(part, deadline));
  }
  return {};
}

Result<> ShmCommunicator::OneShot(std::span<float> data, const Deadline& deadline) {
  const std::span<const std::byte> bytes = std::as_bytes(data);
  CopyForOthers(Buffer(rank(), NextPhase()), bytes.data(), bytes.size());
  INFERD_TRY(
      Phase(Op::kAllReduce, {.op = 0, .root = 0, .rounds = 1, .bytes = bytes.size()}, deadline));
  std::array<const float*, kMaxRanks> sources;
  for (int r = 0; r < size(); ++r) {
    sources[static_cast<std::size_t>(r)] =
        r == rank() ? data.data() : reinterpret_cast<const float*>(Buffer(r, phase_));
  }
  SumInRankOrder(data.data(), {sources.data(), layout_.size}, data.size());
  return {};
}

Result<> ShmCommunicator::TwoShot(std::span<float> data, const Deadline& deadline) {
  const std::size_t lines = DivideUp(data.size(), kSliceFloats);
  const auto begin = [&](int r) {
    return std::min(lines * static_cast<std::size_t>(r) / layout_.size * kSliceFloats, data.size());
  };
  const std::size_t from = begin(rank());
  const std::size_t to = begin(rank() + 1);
  const CallMark mark = {.op = 0, .root = 0, .rounds = 1, .bytes = data.size_bytes()};

  const std::span<std::byte> bytes = std::as_writable_bytes(data);
  const std::size_t own = from * sizeof(float);
  const std::size_t own_bytes = (to - from) * sizeof(float);
  std::byte* const values = Buffer(rank(), NextPhase());
  CopyForOthers(values, bytes.data(), own);
  CopyForOthers(
      values + own + own_bytes, bytes.data() + own + own_bytes, bytes.size() - own - own_bytes);
  INFERD_TRY(Phase(Op::kAllReduce, mark, deadline));
  std::array<const float*, kMaxRanks> sources;
  for (int r = 0; r < size(); ++r) {
    const float* base =
        r == rank() ? data.data() : reinterpret_cast<const float*>(Buffer(r, phase_));
    sources[static_cast<std::size_t>(r)] = base + from;
  }
  SumInRankOrder(data.data() + from, {sources.data(), layout_.size}, to - from);
  CopyForOthers(Buffer(rank(), NextPhase()) + own, bytes.data() + own, own_bytes);
  INFERD_TRY(Phase(Op::kAllReduce, mark, deadline));
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) {
      const auto* reduced = reinterpret_cast<const float*>(Buffer(r, phase_));
      std::copy_n(reduced + begin(r), begin(r + 1) - begin(r), data.data() + begin(r));
    }
  }
  return {};
}

Result<> ShmCommunicator::AllGather(std::span<const float> in,
                                    std::span<float> out,
                                    std::span<const std::size_t> counts) {
  INFERD_TRY(CheckAllGather(in, out, counts, rank(), size()));
  INFERD_TRY(BeginCollective(Op::kAllGather));
  const Deadline deadline(options_.call_deadline);
  const std::size_t chunk = layout_.chunk_bytes / sizeof(float);
  const std::size_t rounds = DivideUp(*std::max_element(counts.begin(), counts.end()), chunk);
  const CallMark mark = {.op = 0, .root = 0, .rounds = 1, .bytes = out.size_bytes()};
  const auto part = [&](int r, std::size_t start) {
    const std::size_t count = counts[static_cast<std::size_t>(r)];
    return start >= count ? 0 : std::min(chunk, count - start);
  };
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::size_t start = round * chunk;
    if (const std::size_t n = part(rank(), start); n != 0) {
      const std::span<const std::byte> bytes = std::as_bytes(in.subspan(start, n));
      CopyForOthers(Buffer(rank(), NextPhase()), bytes.data(), bytes.size());
    }
    INFERD_TRY(Phase(Op::kAllGather, mark, deadline));
    std::size_t base = 0;
    for (int r = 0; r < size(); ++r) {
      if (const std::size_t n = part(r, start); n != 0) {
        const float* from =
            r == rank() ? in.data() + start : reinterpret_cast<const float*>(Buffer(r, phase_));
        std::copy_n(from, n, out.data() + base + start);
      }
      base += counts[static_cast<std::size_t>(r)];
    }
  }
  return {};
}

Result<> ShmCommunicator::CheckSendBytes(std::span<const std::size_t> recv_bytes) {
  for (int r = 0; r < size(); ++r) {
    const std::uint64_t sends = Line(r).send_bytes[phase_ & 1U][static_cast<std::size_t>(rank())];
    if (r != rank() && sends != recv_bytes[static_cast<std::size_t>(r)]) {
      return Break(Internal("all_to_all_v: rank {} sends {} bytes to rank {}, which expects {}",
                            r,
                            sends,
                            rank(),
                            recv_bytes[static_cast<std::size_t>(r)]),
                   r);
    }
  }
  return {};
}

Result<> ShmCommunicator::AllToAllV(std::span<const std::byte> send,
                                    std::span<const std::size_t> send_bytes,
                                    std::span<std::byte> recv,
                                    std::span<const std::size_t> recv_bytes) {
  INFERD_TRY(CheckAllToAllV(send, send_bytes, recv, recv_bytes, rank(), size()));
  INFERD_TRY(BeginCollective(Op::kAllToAllV));
  const Deadline deadline(options_.call_deadline);
  // The buffer holds one slot per receiver; ranks need as many rounds as the longest message of any
  // of them.
  const std::size_t slot = layout_.chunk_bytes / layout_.size / kFlagSpacing * kFlagSpacing;
  std::size_t rounds = 1;
  std::array<std::size_t, kMaxRanks> send_at;
  std::array<std::size_t, kMaxRanks> recv_at;
  std::size_t send_total = 0;
  std::size_t recv_total = 0;
  for (std::size_t r = 0; r < layout_.size; ++r) {
    send_at[r] = send_total;
    recv_at[r] = recv_total;
    send_total += send_bytes[r];
    recv_total += recv_bytes[r];
    rounds = std::max(rounds, DivideUp(send_bytes[r], slot));
    Line(rank()).send_bytes[NextPhase() & 1U][r] = send_bytes[r];
  }
  const auto self = static_cast<std::size_t>(rank());
  CopyBytes(recv.data() + recv_at[self], send.data() + send_at[self], send_bytes[self]);
  const auto part = [slot](std::size_t bytes, std::size_t start) {
    return start >= bytes ? 0 : std::min(slot, bytes - start);
  };
  const CallMark mark = {
      .op = 0, .root = 0, .rounds = static_cast<std::uint32_t>(rounds), .bytes = 0};
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::size_t start = round * slot;
    for (std::size_t r = 0; r < layout_.size; ++r) {
      if (r != self) {
        CopyForOthers(Buffer(rank(), NextPhase()) + r * slot,
                      send.data() + send_at[r] + start,
                      part(send_bytes[r], start));
      }
    }
    INFERD_TRY(Phase(Op::kAllToAllV, mark, deadline));
    if (round == 0) {
      INFERD_TRY(CheckSendBytes(recv_bytes));
      for (int r = 0; r < size(); ++r) {
        rounds = std::max<std::size_t>(rounds, Line(r).mark[phase_ & 1U].rounds);
      }
    }
    for (std::size_t r = 0; r < layout_.size; ++r) {
      if (r != self) {
        CopyBytes(recv.data() + recv_at[r] + start,
                  Buffer(static_cast<int>(r), phase_) + self * slot,
                  part(recv_bytes[r], start));
      }
    }
  }
  return {};
}

Result<> ShmCommunicator::Broadcast(std::span<std::byte> data, int root) {
  INFERD_TRY(CheckRoot(root, size()));
  INFERD_TRY(BeginCollective(Op::kBroadcast));
  const Deadline deadline(options_.call_deadline);
  const CallMark mark = {
      .op = 0, .root = static_cast<std::uint16_t>(root), .rounds = 1, .bytes = data.size()};
  for (std::size_t done = 0; done < data.size(); done += layout_.chunk_bytes) {
    const std::size_t n = std::min(layout_.chunk_bytes, data.size() - done);
    if (rank() == root) {
      CopyForOthers(Buffer(root, NextPhase()), data.data() + done, n);
    }
    INFERD_TRY(Phase(Op::kBroadcast, mark, deadline));
    if (rank() != root) {
      CopyBytes(data.data() + done, Buffer(root, phase_), n);
    }
  }
  return {};
}

}  // namespace inferd::comm
