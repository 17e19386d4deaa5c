// SPDX-License-Identifier: Apache-2.0
// The shared-memory communicator: collectives in phases over doubled buffers, messages over rings.
#pragma once

#include "comm/communicator.h"
#include "comm/deadline.h"
#include "comm/shm_layout.h"
#include "comm/shm_segment.h"
#include "comm/shm_wait.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace inferd::comm {

/// Every collective is a row of phases. In phase p a rank writes its buffer p mod 2, raises its
/// flag to p, waits until all flags are at least p, and then reads the others' buffers p mod 2.
/// When all have reached p + 1 they have read phase p, so buffer p mod 2 is free again in phase p +
/// 2: two buffers and one barrier per phase are enough.
class ShmCommunicator final : public Communicator {
 public:
  ShmCommunicator(ShmSegment segment, const GroupOptions& options);
  ~ShmCommunicator() override = default;

  /// The first phase, under the join deadline. Rank 0 removes the name afterwards, whatever came of
  /// it.
  Result<> Join(const Deadline& deadline);

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  Result<> AllReduceSum(std::span<float> data) override;
  Result<> AllGather(std::span<const float> in,
                     std::span<float> out,
                     std::span<const std::size_t> counts) override;
  Result<> AllToAllV(std::span<const std::byte> send,
                     std::span<const std::size_t> send_bytes,
                     std::span<std::byte> recv,
                     std::span<const std::size_t> recv_bytes) override;
  Result<> Broadcast(std::span<std::byte> data, int root) override;
  Result<> Send(std::span<const std::byte> data, int to) override;
  Result<> Recv(std::span<std::byte> data, int from) override;
  Result<> Barrier() override;
  Result<> CheckPeers() override;
  void Abort() override;

 private:
  enum class Op : std::uint16_t {
    kJoin,
    kAllReduce,
    kAllGather,
    kAllToAllV,
    kBroadcast,
    kBarrier,
    kSend,
    kRecv
  };
  static std::string_view Name(Op op);

  RankLine& Line(int r) const;
  std::byte* Buffer(int r, std::uint32_t phase) const;
  std::uint32_t NextPhase() const { return phase_ + 1; }
  Ring& RingOf(int from, int to) const;

  /// Refuses a broken group; backs this rank's buffers with memory the first time.
  Result<> BeginCollective(Op op);
  /// Publishes phase_ + 1 with `mark`, waits for all ranks, checks that they are in the same call.
  Result<> Phase(Op op, CallMark mark, const Deadline& deadline);
  /// Breaks the group because of `error`, wakes everyone and returns the error.
  Error Break(Error error, int culprit);
  void WakeGroup();

  Result<> OneShot(std::span<float> data, const Deadline& deadline);
  Result<> TwoShot(std::span<float> data, const Deadline& deadline);
  Result<> CheckSendBytes(std::span<const std::size_t> recv_bytes);

  /// Writes `head` and then `body` as one stretch of bytes.
  Result<> WriteRing(std::span<const std::byte> head,
                     std::span<const std::byte> body,
                     int to,
                     const Deadline& deadline);
  Result<> ReadRing(std::span<std::byte> data, int from, const Deadline& deadline);

  const GroupOptions options_;
  const ShmLayout layout_;
  ShmSegment segment_;
  ShmWaiter waiter_;
  std::uint32_t phase_ = 0;
  bool buffers_committed_ = false;
  std::array<bool, kMaxRanks> ring_committed_ = {};
};

}  // namespace inferd::comm
