// SPDX-License-Identifier: Apache-2.0
// The TCP communicator: a full mesh, every collective one or two exchanges over it.
#pragma once

#include "base/file.h"
#include "comm/communicator.h"
#include "comm/deadline.h"
#include "comm/tcp_peer.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace inferd::comm {

/// A call holds `mutex_` from start to end; Abort rings the eventfd that every wait watches and
/// then takes the mutex, so that only one thread ever touches the peers.
class TcpCommunicator final : public Communicator {
 public:
  /// peers[r] is the connection to rank r; the own place is empty. `wake` is an eventfd.
  TcpCommunicator(const GroupOptions& options,
                  std::vector<std::unique_ptr<TcpPeer>> peers,
                  base::UniqueFd wake);
  ~TcpCommunicator() override = default;

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
  enum class Op : std::uint8_t {
    kMessage,
    kAllReduce,
    kAllGather,
    kAllToAllV,
    kBroadcast,
    kBarrier
  };
  static std::string_view Name(Op op);

  /// Runs `call` under the mutex, unless the group is broken; breaks it when the call fails.
  Result<> Run(std::string_view name, const std::function<Result<>(const Deadline&)>& call);
  /// Sends out(r) to every other rank r and receives into(r) from it.
  template <class Out, class Into>
  Result<> Exchange(Op op, const Deadline& deadline, Out out, Into into);
  /// Until no peer is sending or receiving.
  Result<> Complete(const Deadline& deadline);
  /// One round over the peers. True when nothing is left to do.
  Result<bool> Advance();
  /// Sleeps until a socket is ready; the error of an abort or of a missed deadline.
  Result<> Sleep(const Deadline& deadline);
  /// Reads from peers this call needs nothing from: they may have to say why the group is broken.
  Result<> ListenToIdle();
  Error Late(const Deadline& deadline) const;
  void Break(const Error& error);

  Result<> ReduceDirect(std::span<float> data, const Deadline& deadline);
  Result<> ReduceInSlices(std::span<float> data, const Deadline& deadline);
  float* Scratch(std::size_t floats);

  const GroupOptions options_;
  const std::vector<std::unique_ptr<TcpPeer>> peers_;
  const base::UniqueFd wake_;
  std::atomic<bool> aborted_ = false;

  std::mutex mutex_;
  std::optional<Error> broken_;
  int culprit_ = 0;  ///< whom the last error is about
  std::uint32_t call_ = 0;
  std::vector<float> scratch_;
};

}  // namespace inferd::comm
