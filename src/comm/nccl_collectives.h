// SPDX-License-Identifier: Apache-2.0
// One NCCL communicator, from its non-blocking start to its abort. Every call into NCCL is made by
// the device's thread; another thread can only ask for the end.
#pragma once

#include "comm/communicator.h"
#include "comm/deadline.h"
#include "comm/nccl_api.h"
#include "tensor/device_queue.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::comm {

class NcclCollectives final : public DeviceCollectives {
 public:
  /// places[r]: "host-a GPU-<uuid>" of rank r, for errors. `host` is the same group on host memory.
  NcclCollectives(const GroupOptions& options,
                  const NcclApi& api,
                  std::vector<std::string> places,
                  Communicator& host,
                  tensor::DeviceQueue& queue);
  ~NcclCollectives() override;
  NcclCollectives(const NcclCollectives&) = delete;
  NcclCollectives& operator=(const NcclCollectives&) = delete;

  /// Passes rank 0's unique id around and makes the communicator, under the join deadline; then
  /// shares memory where that is asked for.
  Result<> Start(const Deadline& deadline);

  Result<> AllReduceSum(float* data, std::size_t count) override;
  Result<> AllGather(const void* in, void* out, std::span<const std::size_t> bytes) override;
  Result<> AllToAllV(const void* send,
                     std::span<const std::size_t> send_bytes,
                     void* recv,
                     std::span<const std::size_t> recv_bytes) override;
  Result<> Send(const void* data, std::size_t bytes, int to) override;
  Result<> Recv(void* data, std::size_t bytes, int from) override;
  Result<bool> ShortSum(float* data, std::int64_t count) override;
  Result<bool> ShortGather(const tensor::ColumnsTask& task) override;
  Result<bool> ShortSumThenNorm(const float* part,
                                std::int64_t rows,
                                const tensor::ThenNorm& norm) override;
  Result<bool> ShortGatherThenNorm(const tensor::ColumnsTask& task,
                                   const tensor::ThenNorm& norm) override;
  Result<> Check(std::chrono::nanoseconds waited) override;

  /// Thread-safe: the device's thread aborts the communicator when it next comes by. Short messages
  /// are ended at once.
  void RequestAbort();

 private:
  // A collective in the queue, and the mark behind it.
  struct Outstanding {
    std::uint64_t mark = 0;
    std::string_view name;
    std::uint64_t number = 0;  // counted from 1 over the group's life
  };

  std::size_t Rank() const { return static_cast<std::size_t>(options_.rank); }
  std::string_view Place() const { return places_[Rank()]; }
  std::string Peers() const;
  /// "all_gather 17", the first that the device has not finished.
  std::string Stuck();
  /// Runs `call` as one NCCL group and marks the queue behind it.
  template <class Call>
  Result<> Run(std::string_view name, Call call);
  template <class Call>
  Result<bool> RunShort(std::string_view name, Call call);
  /// Ends what the queue may still wait for.
  void End();
  /// The last call is in the queue, or in its recording.
  void Remember(std::string_view name);
  /// The ranks show each other their memory, and all use it or none.
  Result<> SharePeerMemory(const Deadline& deadline);
  /// Polls until NCCL has an answer to what it called in progress.
  Result<> Settle(NcclResult result, std::string_view name, const Deadline& deadline);
  /// Asked for an abort, or a peer is gone.
  Result<> Look(std::string_view name);
  Error ErrorOf(NcclResult result, std::string_view name) const;
  /// Ends the communicator, here and at the peers.
  Error Fail(Error error);

  const GroupOptions options_;
  const NcclApi api_;
  const std::vector<std::string> places_;
  Communicator& host_;
  tensor::DeviceQueue& queue_;
  NcclComm comm_ = nullptr;
  std::unique_ptr<tensor::PeerMemory> peers_;  // null: all messages go by NCCL
  bool recorded_ = false;                      // some collective is in a recording of the queue
  std::atomic<bool> abort_requested_ = false;
  std::optional<Error> broken_;
  std::deque<Outstanding> outstanding_;
  std::uint64_t calls_ = 0;
  std::chrono::steady_clock::time_point peers_seen_{};
};

}  // namespace inferd::comm
