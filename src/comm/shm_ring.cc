// SPDX-License-Identifier: Apache-2.0
// Send and Recv of the shared-memory backend: a byte ring per ordered pair, every message behind
// its length.
#include "base/error.h"
#include "comm/arguments.h"
#include "comm/shm_communicator.h"
#include "comm/shm_copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace inferd::comm {
namespace {

/// The receiver may start on a long message after this many bytes.
constexpr std::size_t kPiece = 64U << 10;

}  // namespace

Result<> ShmCommunicator::WriteRing(std::span<const std::byte> head,
                                    std::span<const std::byte> body,
                                    int to,
                                    const Deadline& deadline) {
  Ring& ring = RingOf(rank(), to);
  std::byte* const base = segment_.data() + layout_.RingDataOffset(rank(), to);
  std::uint32_t published = ring.head.value.load(std::memory_order_relaxed);
  std::uint32_t written = published;
  const auto publish = [&] {
    RaiseSignal(ring.head.value, ring.head.parked, written);
    published = written;
  };
  for (std::span<const std::byte> part : {head, body}) {
    while (!part.empty()) {
      std::uint32_t tail = ring.tail.value.load(std::memory_order_acquire);
      if (written - tail == layout_.ring_bytes) {
        publish();
        INFERD_TRY(waiter_.AwaitAtLeast(
            ring.tail.value, ring.tail.parked, tail + 1, to, deadline, Name(Op::kSend)));
        tail = ring.tail.value.load(std::memory_order_acquire);
      }
      const std::size_t room = layout_.ring_bytes - (written - tail);
      const std::size_t at = written & (layout_.ring_bytes - 1);
      const std::size_t n = std::min({part.size(), room, layout_.ring_bytes - at, kPiece});
      CopyForOthers(base + at, part.data(), n);
      written += static_cast<std::uint32_t>(n);
      part = part.subspan(n);
      if (written - published >= kPiece) {
        publish();
      }
    }
  }
  publish();
  return {};
}

Result<> ShmCommunicator::ReadRing(std::span<std::byte> data, int from, const Deadline& deadline) {
  Ring& ring = RingOf(from, rank());
  const std::byte* const base = segment_.data() + layout_.RingDataOffset(from, rank());
  std::uint32_t tail = ring.tail.value.load(std::memory_order_relaxed);
  while (!data.empty()) {
    INFERD_TRY(waiter_.AwaitAtLeast(
        ring.head.value, ring.head.parked, tail + 1, from, deadline, Name(Op::kRecv)));
    const std::size_t filled = ring.head.value.load(std::memory_order_acquire) - tail;
    const std::size_t at = tail & (layout_.ring_bytes - 1);
    const std::size_t n = std::min({data.size(), filled, layout_.ring_bytes - at});
    CopyBytes(data.data(), base + at, n);
    tail += static_cast<std::uint32_t>(n);
    RaiseSignal(ring.tail.value, ring.tail.parked, tail);
    data = data.subspan(n);
  }
  return {};
}

Result<> ShmCommunicator::Send(std::span<const std::byte> data, int to) {
  INFERD_TRY(CheckPeer("send to", to, rank(), size()));
  if (waiter_.Broken()) {
    return waiter_.BrokenError(Name(Op::kSend));
  }
  if (!ring_committed_[static_cast<std::size_t>(to)]) {
    auto committed = segment_.Commit(layout_.RingDataOffset(rank(), to), layout_.ring_bytes);
    if (!committed.ok()) {
      return Break(std::move(committed).error(), rank());
    }
    ring_committed_[static_cast<std::size_t>(to)] = true;
  }
  const Deadline deadline(options_.call_deadline);
  const std::uint64_t bytes = data.size();
  auto sent = WriteRing(std::as_bytes(std::span(&bytes, 1)), data, to, deadline);
  if (!sent.ok()) {
    WakeGroup();
  }
  return sent;
}

Result<> ShmCommunicator::Recv(std::span<std::byte> data, int from) {
  INFERD_TRY(CheckPeer("receive from", from, rank(), size()));
  if (waiter_.Broken()) {
    return waiter_.BrokenError(Name(Op::kRecv));
  }
  const Deadline deadline(options_.call_deadline);
  std::uint64_t bytes = 0;
  auto received = ReadRing(std::as_writable_bytes(std::span(&bytes, 1)), from, deadline);
  if (received.ok() && bytes != data.size()) {
    return Break(
        Internal("rank {} sent {} bytes where rank {} expects {}; matching Send and Recv must "
                 "have equal sizes",
                 from,
                 bytes,
                 rank(),
                 data.size()),
        from);
  }
  if (received.ok()) {
    received = ReadRing(data, from, deadline);
  }
  if (!received.ok()) {
    WakeGroup();
  }
  return received;
}

}  // namespace inferd::comm
