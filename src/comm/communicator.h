// SPDX-License-Identifier: Apache-2.0
// Collectives and point-to-point between the ranks of one group. Backends: shm (one host), tcp
// (several), nccl (device memory, on top of one of those: comm/nccl.h), fake (threads of one
// process, for tests). Every call has a deadline; Abort makes every pending and later call fail.
#pragma once

#include "inferd/result.h"
#include "tensor/peer_memory.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::comm {

/// The same group on device memory: every call adds to the device's queue and returns. Pointers are
/// device addresses; what is at them counts when the queue gets there. One thread, the device's. A
/// call fails at once when the group is known to be broken; what goes wrong later is told by Check.
class DeviceCollectives {
 public:
  virtual ~DeviceCollectives() = default;

  /// data[0, count) = sum over ranks, in place; in which order is the library's choice, the same at
  /// all ranks.
  virtual Result<> AllReduceSum(float* data, std::size_t count) = 0;
  /// out = the ranks' `in` in rank order; bytes[r] come from rank r. `in` may be its place in
  /// `out`.
  virtual Result<> AllGather(const void* in, void* out, std::span<const std::size_t> bytes) = 0;
  /// As Communicator::AllToAllV.
  virtual Result<> AllToAllV(const void* send,
                             std::span<const std::size_t> send_bytes,
                             void* recv,
                             std::span<const std::size_t> recv_bytes) = 0;
  virtual Result<> Send(const void* data, std::size_t bytes, int to) = 0;
  virtual Result<> Recv(void* data, std::size_t bytes, int from) = 0;

  /// Messages short enough to go through the memory that the devices reach in each other: the calls
  /// of tensor::PeerMemory. False at all ranks: nothing has been done, and it is for the calls
  /// above.
  virtual Result<bool> ShortSum(float* data, std::int64_t count) = 0;
  virtual Result<bool> ShortGather(const tensor::ColumnsTask& task) = 0;
  virtual Result<bool> ShortSumThenNorm(const float* part,
                                        std::int64_t rows,
                                        const tensor::ThenNorm& norm) = 0;
  virtual Result<bool> ShortGatherThenNorm(const tensor::ColumnsTask& task,
                                           const tensor::ThenNorm& norm) = 0;

  /// Whether the group is whole, for the device's tensor::WaitGuard: errors of the library, peers
  /// that are gone, Abort, and a wait longer than the call deadline. After an error nothing of this
  /// group keeps the queue waiting.
  virtual Result<> Check(std::chrono::nanoseconds waited) = 0;
};

/// A group of ranks 0..size-1. All ranks call the same collectives in the same order (as in MPI and
/// NCCL). Threads: one caller at a time; Abort may come from any thread. Errors: kDeadlineExceeded
/// (names the rank that is late), kAborted (Abort was called), kUnavailable (a peer is gone). After
/// an error the group is broken and must be made anew with a new generation. Sums run in rank
/// order, so all ranks get the same bits.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// data[i] = sum over ranks, in place.
  virtual Result<> AllReduceSum(std::span<float> data) = 0;
  /// out = concatenation over ranks of their `in`; counts[r] floats come from rank r, sum(counts)
  /// == out.size().
  virtual Result<> AllGather(std::span<const float> in,
                             std::span<float> out,
                             std::span<const std::size_t> counts) = 0;
  /// Sends send_bytes[r] bytes to rank r (laid out in rank order in `send`), receives recv_bytes[r]
  /// from rank r.
  virtual Result<> AllToAllV(std::span<const std::byte> send,
                             std::span<const std::size_t> send_bytes,
                             std::span<std::byte> recv,
                             std::span<const std::size_t> recv_bytes) = 0;
  virtual Result<> Broadcast(std::span<std::byte> data, int root) = 0;
  /// Matching Send and Recv have equal sizes and come in the same order per pair. Send may return
  /// before the peer receives as long as its buffer (a few messages) has room.
  virtual Result<> Send(std::span<const std::byte> data, int to) = 0;
  virtual Result<> Recv(std::span<std::byte> data, int from) = 0;
  virtual Result<> Barrier() = 0;

  /// Whether all peers are there, without waiting; breaks the group when one is gone. For who waits
  /// for something else than a call of this group.
  virtual Result<> CheckPeers() = 0;
  /// Null: this group is on host memory only.
  virtual DeviceCollectives* device() { return nullptr; }

  /// Thread-safe, idempotent; wakes every rank of the group when the backend can (shm), else this
  /// rank.
  virtual void Abort() = 0;
};

/// What a rank needs to join a group. The same `id` at every rank names the group (unique per
/// generation).
struct GroupOptions {
  std::string id;
  std::uint64_t generation = 0;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds join_deadline{30'000};
  std::chrono::milliseconds call_deadline{30'000};
  /// Largest message of one collective in bytes; larger ones are split inside.
  std::size_t chunk_bytes = 1U << 20;
  /// On device memory: ranks of one host share some of it for short messages, where they can.
  bool peer_memory = false;
};

/// All ranks on one host: a shared-memory segment named after the id, mode 0600, unlinked once all
/// have mapped it.
Result<std::unique_ptr<Communicator>> JoinShm(const GroupOptions& options);

/// A listening data socket; bind once per worker, before joining, and publish endpoint() to the
/// peers.
class TcpListener {
 public:
  virtual ~TcpListener() = default;
  /// "10.0.0.1:40123".
  virtual const std::string& endpoint() const = 0;
};
/// Binds `address` ("127.0.0.1", or the one configured address of this host) on a free port.
Result<std::unique_ptr<TcpListener>> ListenTcp(const std::string& address);

/// endpoints[r] is rank r's listener. Every connection is authenticated both ways with `secret`
/// (HMAC-SHA256 over fresh nonces, the group id, generation and ranks) before anything else is
/// read.
Result<std::unique_ptr<Communicator>> JoinTcp(const GroupOptions& options,
                                              TcpListener& listener,
                                              std::span<const std::string> endpoints,
                                              std::string_view secret);

/// `size` communicators for threads of one process; for tests.
std::vector<std::unique_ptr<Communicator>> MakeFakeGroup(int size);

}  // namespace inferd::comm
