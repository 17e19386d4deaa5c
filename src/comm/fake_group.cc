// SPDX-License-Identifier: Apache-2.0
// Threads of one process under one mutex: every rank shows its arguments, all meet, read each
// other's, and meet again.
#include "comm/fake_group.h"

#include "base/check.h"
#include "base/error.h"
#include "comm/arguments.h"
#include "comm/deadline.h"
#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

namespace inferd::comm {
namespace {

/// Send waits when this many bytes are on their way to one receiver (one message always fits).
constexpr std::size_t kPairBytes = 1U << 20;

/// What a rank shows to the others while it is in a collective.
struct Shown {
  std::string_view op;
  std::size_t bytes = 0;
  int root = 0;
  std::span<const std::byte> data;
  std::span<const std::size_t> counts;
};

struct Pair {
  std::deque<std::vector<std::byte>> messages;
  std::size_t bytes = 0;
};

/// Guarded by `mutex`.
struct State {
  explicit State(const FakeGroupOptions& group) : options(group) {}

  const FakeGroupOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Error> fault;
  std::array<bool, kMaxRanks> gone = {};
  std::array<std::uint64_t, kMaxRanks> meetings = {};
  std::array<Shown, kMaxRanks> shown = {};
  std::array<std::array<Pair, kMaxRanks>, kMaxRanks> pairs;
};

class FakeCommunicator final : public Communicator {
 public:
  FakeCommunicator(std::shared_ptr<State> state, int rank)
      : state_(std::move(state)), rank_(rank) {}
  ~FakeCommunicator() override { Die(); }
  FakeCommunicator(const FakeCommunicator&) = delete;
  FakeCommunicator& operator=(const FakeCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return state_->options.size; }

  Result<> AllReduceSum(std::span<float> data) override {
    const auto bytes = std::as_bytes(data);
    std::vector<float> sum(data.size());
    INFERD_TRY(Exchange(
        {.op = "all_reduce", .bytes = bytes.size(), .root = 0, .data = bytes, .counts = {}}, [&] {
          std::array<const float*, kMaxRanks> sources;
          for (std::size_t r = 0; r < Size(); ++r) {
            sources[r] = reinterpret_cast<const float*>(state_->shown[r].data.data());
          }
          SumInRankOrder(sum.data(), {sources.data(), Size()}, sum.size());
          return Result<>();
        }));
    std::copy(sum.begin(), sum.end(), data.begin());
    return {};
  }

  Result<> AllGather(std::span<const float> in,
                     std::span<float> out,
                     std::span<const std::size_t> counts) override {
    INFERD_TRY(CheckAllGather(in, out, counts, rank_, size()));
    return Exchange({.op = "all_gather",
                     .bytes = out.size(),
                     .root = 0,
                     .data = std::as_bytes(in),
                     .counts = {}},
                    [&]() -> Result<> {
                      std::byte* to = std::as_writable_bytes(out).data();
                      for (std::size_t r = 0; r < Size(); ++r) {
                        const auto from = state_->shown[r].data;
                        if (from.size() != counts[r] * sizeof(float)) {
                          return Internal(
                              "all_gather: rank {} gives {} bytes, rank {} expects {} floats",
                              r,
                              from.size(),
                              rank_,
                              counts[r]);
                        }
                        CopyBytes(to, from.data(), from.size());
                        to += from.size();
                      }
                      return {};
                    });
  }

  Result<> AllToAllV(std::span<const std::byte> send,
                     std::span<const std::size_t> send_bytes,
                     std::span<std::byte> recv,
                     std::span<const std::size_t> recv_bytes) override {
    INFERD_TRY(CheckAllToAllV(send, send_bytes, recv, recv_bytes, rank_, size()));
    const Shown own = {
        .op = "all_to_all_v", .bytes = 0, .root = 0, .data = send, .counts = send_bytes};
    return Exchange(own, [&]() -> Result<> {
      const auto self = static_cast<std::size_t>(rank_);
      std::byte* to = recv.data();
      for (std::size_t r = 0; r < Size(); ++r) {
        const Shown& theirs = state_->shown[r];
        std::size_t at = 0;
        for (std::size_t before = 0; before < self; ++before) {
          at += theirs.counts[before];
        }
        if (theirs.counts[self] != recv_bytes[r]) {
          return Internal("all_to_all_v: rank {} sends {} bytes to rank {}, which expects {}",
                          r,
                          theirs.counts[self],
                          rank_,
                          recv_bytes[r]);
        }
        CopyBytes(to, theirs.data.data() + at, recv_bytes[r]);
        to += recv_bytes[r];
      }
      return {};
    });
  }

  Result<> Broadcast(std::span<std::byte> data, int root) override {
    INFERD_TRY(CheckRoot(root, size()));
    return Exchange(
        {.op = "broadcast", .bytes = data.size(), .root = root, .data = data, .counts = {}}, [&] {
          if (rank_ != root) {
            CopyBytes(data.data(),
                      state_->shown[static_cast<std::size_t>(root)].data.data(),
                      data.size());
          }
          return Result<>();
        });
  }

  Result<> Send(std::span<const std::byte> data, int to) override {
    INFERD_TRY(CheckPeer("send to", to, rank_, size()));
    INFERD_TRY(BeforeCall());
    std::unique_lock lock(state_->mutex);
    Pair& pair = PairOf(rank_, to);
    const auto room = [&] {
      return pair.messages.empty() || pair.bytes + data.size() <= kPairBytes;
    };
    INFERD_TRY(Wait(lock, "send", to, room));
    pair.messages.emplace_back(data.begin(), data.end());
    pair.bytes += data.size();
    state_->changed.notify_all();
    return {};
  }

  Result<> Recv(std::span<std::byte> data, int from) override {
    INFERD_TRY(CheckPeer("receive from", from, rank_, size()));
    INFERD_TRY(BeforeCall());
    std::unique_lock lock(state_->mutex);
    Pair& pair = PairOf(from, rank_);
    INFERD_TRY(Wait(lock, "recv", from, [&] { return !pair.messages.empty(); }));
    const std::vector<std::byte> message = std::move(pair.messages.front());
    pair.messages.pop_front();
    pair.bytes -= message.size();
    state_->changed.notify_all();
    if (message.size() != data.size()) {
      return Break(
          Internal("rank {} sent {} bytes where rank {} expects {}; matching Send and Recv must "
                   "have equal sizes",
                   from,
                   message.size(),
                   rank_,
                   data.size()));
    }
    CopyBytes(data.data(), message.data(), message.size());
    return {};
  }

  Result<> Barrier() override {
    return Exchange({.op = "barrier", .bytes = 0, .root = 0, .data = {}, .counts = {}},
                    [] { return Result<>(); });
  }

  Result<> CheckPeers() override {
    const std::lock_guard lock(state_->mutex);
    for (int r = 0; r < size() && !state_->fault; ++r) {
      if (state_->gone[static_cast<std::size_t>(r)]) {
        Break(Unavailable("rank {} is gone", r));
      }
    }
    return state_->fault ? Result<>(*state_->fault) : Result<>();
  }

  void Abort() override {
    const std::lock_guard lock(state_->mutex);
    Break(Aborted("rank {} aborted the group", rank_));
  }

 private:
  std::size_t Size() const { return static_cast<std::size_t>(size()); }
  Pair& PairOf(int from, int to) {
    return state_->pairs[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  }

  /// Under the lock: the first fault stays and ends every wait.
  Error Break(Error error) {
    if (!state_->fault) {
      state_->fault = error;
    }
    state_->changed.notify_all();
    return error;
  }

  void Die() {
    const std::lock_guard lock(state_->mutex);
    state_->gone[static_cast<std::size_t>(rank_)] = true;
    state_->changed.notify_all();
  }

  Result<> BeforeCall() {
    if (state_->options.before_call) {
      auto fate = state_->options.before_call(rank_, calls_);
      if (!fate.ok()) {
        Die();
        return fate;
      }
    }
    ++calls_;
    const std::lock_guard lock(state_->mutex);
    return state_->fault ? Result<>(*state_->fault) : Result<>();
  }

  /// Under the lock: until ready() or the group is broken, `rank` is gone or the deadline has
  /// passed.
  template <class Ready>
  Result<> Wait(std::unique_lock<std::mutex>& lock, std::string_view op, int rank, Ready ready) {
    const Deadline deadline(state_->options.call_deadline);
    const bool& gone = state_->gone[static_cast<std::size_t>(rank)];
    const auto over = [&] { return ready() || state_->fault || gone; };
    const bool in_time = state_->changed.wait_until(lock, deadline.end(), over);
    // First: a rank that is slow to wake must not suffer from what the others did after this call.
    if (ready()) {
      return {};
    }
    if (!state_->fault && !in_time) {
      Break(DeadlineExceeded(
          "rank {} is late; rank {} waited {} ms", rank, rank_, deadline.allowed().count()));
    } else if (!state_->fault) {
      Break(Unavailable("rank {} is gone", rank));
    }
    return state_->fault->WithContext(op);
  }

  /// Under the lock: waits until all ranks have met as often as this one.
  Result<> Meet(std::unique_lock<std::mutex>& lock, std::string_view op) {
    const std::uint64_t meeting = ++state_->meetings[static_cast<std::size_t>(rank_)];
    state_->changed.notify_all();
    for (int r = 0; r < size(); ++r) {
      const std::uint64_t& theirs = state_->meetings[static_cast<std::size_t>(r)];
      INFERD_TRY(Wait(lock, op, r, [&] { return theirs >= meeting; }));
    }
    return {};
  }

  template <class Read>
  Result<> Exchange(const Shown& own, Read read) {
    INFERD_TRY(BeforeCall());
    std::unique_lock lock(state_->mutex);
    state_->shown[static_cast<std::size_t>(rank_)] = own;
    INFERD_TRY(Meet(lock, own.op));
    for (int r = 0; r < size(); ++r) {
      const Shown& theirs = state_->shown[static_cast<std::size_t>(r)];
      if (theirs.op != own.op || theirs.bytes != own.bytes || theirs.root != own.root) {
        return Break(
            Internal("rank {} is in {} of {} bytes, rank {} in {} of {}; all ranks must make "
                     "the same calls",
                     r,
                     theirs.op,
                     theirs.bytes,
                     rank_,
                     own.op,
                     own.bytes));
      }
    }
    if (auto done = read(); !done.ok()) {
      return Break(std::move(done).error());
    }
    return Meet(lock, own.op);
  }

  const std::shared_ptr<State> state_;
  const int rank_;
  std::uint64_t calls_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeFakeGroup(const FakeGroupOptions& options) {
  INFERD_CHECK(options.size >= 1 && options.size <= kMaxRanks);
  const auto state = std::make_shared<State>(options);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int r = 0; r < options.size; ++r) {
    group.push_back(std::make_unique<FakeCommunicator>(state, r));
  }
  return group;
}

std::vector<std::unique_ptr<Communicator>> MakeFakeGroup(int size) {
  FakeGroupOptions options;
  options.size = size;
  return MakeFakeGroup(options);
}

}  // namespace inferd::comm
