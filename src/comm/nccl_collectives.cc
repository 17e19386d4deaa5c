// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_collectives.h"

#include "base/check.h"
#include "base/error.h"
#include "comm/arguments.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <utility>

namespace inferd::comm {
namespace {

constexpr std::chrono::milliseconds kLookAtPeers{50};
/// Collectives whose names are kept. A step of a deep model has some hundreds.
constexpr std::size_t kMaxOutstanding = 1024;
/// A poll yields this often before it sleeps between looks.
constexpr int kYields = 200;

/// What rank 0 sends to the others.
struct IdCard {
  NcclResult result = NcclResult::kSuccess;
  NcclUniqueId id{};
};

std::byte* At(void* data, std::size_t offset) { return static_cast<std::byte*>(data) + offset; }
const std::byte* At(const void* data, std::size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

/// The first that is neither success nor under way; else under way if one of them is.
NcclResult Worse(NcclResult a, NcclResult b) {
  const auto failed = [](NcclResult r) {
    return r != NcclResult::kSuccess && r != NcclResult::kInProgress;
  };
  return failed(a) || (a != NcclResult::kSuccess && !failed(b)) ? a : b;
}

}  // namespace

NcclCollectives::NcclCollectives(const GroupOptions& options,
                                 const NcclApi& api,
                                 std::vector<std::string> places,
                                 Communicator& host,
                                 tensor::DeviceQueue& queue)
    : options_(options), api_(api), places_(std::move(places)), host_(host), queue_(queue) {}

// Not ncclCommDestroy: that waits for the peers, which may be gone.
NcclCollectives::~NcclCollectives() { End(); }

// A communicator ends when the last recording does that holds calls of it.
void NcclCollectives::End() {
  if (peers_ != nullptr) {
    peers_->Abort();
  }
  if (std::exchange(recorded_, false)) {
    queue_.DropRecordings();
  }
  if (comm_ != nullptr) {
    (void)api_.comm_abort(std::exchange(comm_, nullptr));
  }
}

void NcclCollectives::RequestAbort() {
  abort_requested_ = true;
  if (peers_ != nullptr) {
    peers_->Abort();
  }
}

Result<> NcclCollectives::Start(const Deadline& deadline) {
  constexpr std::string_view kName = "ncclCommInitRankConfig";
  IdCard card;
  if (options_.rank == 0) {
    card.result = api_.get_unique_id(&card.id);
  }
  INFERD_TRY(host_.Broadcast(std::as_writable_bytes(std::span(&card, 1)), 0));
  if (card.result != NcclResult::kSuccess) {
    return Unavailable("ncclGetUniqueId of group {} at rank 0 on {}: {}",
                       options_.id,
                       places_[0],
                       api_.Describe(card.result, nullptr));
  }
  INFERD_TRY(queue_.MakeCurrent());
  NcclConfig config;
  const NcclResult begun =
      api_.comm_init_rank_config(&comm_, options_.size, card.id, options_.rank, &config);
  INFERD_TRY(Settle(begun, kName, deadline));
  if (auto together = host_.Barrier(); !together.ok()) {
    return Fail(together.error().WithContext(kName));
  }
  return options_.peer_memory ? SharePeerMemory(deadline) : Result<>();
}

std::string NcclCollectives::Peers() const {
  std::string text;
  for (std::size_t r = 0; r < places_.size(); ++r) {
    if (r != Rank()) {
      text += fmt::format("{}rank {} on {}", text.empty() ? "" : ", ", r, places_[r]);
    }
  }
  return text;
}

std::string NcclCollectives::Stuck() {
  const std::uint64_t passed = queue_.Passed();
  while (!outstanding_.empty() && outstanding_.front().mark <= passed) {
    outstanding_.pop_front();
  }
  return outstanding_.empty()
             ? fmt::format("{}after collective {}", recorded_ ? "in a CUDA graph, or " : "", calls_)
             : fmt::format("{} {}", outstanding_.front().name, outstanding_.front().number);
}

Error NcclCollectives::Fail(Error error) {
  broken_ = error.WithContext(
      fmt::format("group {}, rank {} on {}", options_.id, options_.rank, Place()));
  End();
  host_.Abort();
  return *broken_;
}

Error NcclCollectives::ErrorOf(NcclResult result, std::string_view name) const {
  const bool of_peer = result == NcclResult::kRemoteError || result == NcclResult::kSystemError;
  return Error(of_peer ? Code::kUnavailable : Code::kInternal,
               fmt::format("{}: {}; peers: {} (NCCL_DEBUG=WARN says more)",
                           name,
                           api_.Describe(result, comm_),
                           Peers()));
}

Result<> NcclCollectives::Look(std::string_view name) {
  if (abort_requested_) {
    return Fail(Aborted("{}: rank {} aborted the group", name, options_.rank));
  }
  const auto now = std::chrono::steady_clock::now();
  if (now - peers_seen_ < kLookAtPeers) {
    return {};
  }
  peers_seen_ = now;
  if (auto there = host_.CheckPeers(); !there.ok()) {
    return Fail(there.error().WithContext(fmt::format("{}; peers: {}", name, Peers())));
  }
  return {};
}

Result<> NcclCollectives::Settle(NcclResult result,
                                 std::string_view name,
                                 const Deadline& deadline) {
  for (int looks = 0; result == NcclResult::kInProgress; ++looks) {
    INFERD_TRY(Look(name));
    if (deadline.Passed()) {
      return Fail(DeadlineExceeded(
          "{}: not done after {} ms; peers: {}. Are they reachable on the interface that NCCL "
          "chose (NCCL_SOCKET_IFNAME)? NCCL_DEBUG=INFO says what it does",
          name,
          deadline.allowed().count(),
          Peers()));
    }
    if (looks < kYields) {
      ::sched_yield();
    } else {
      ::poll(nullptr, 0, 1);
    }
    const NcclResult asked = api_.comm_get_async_error(comm_, &result);
    result = asked == NcclResult::kSuccess ? result : asked;
  }
  if (result != NcclResult::kSuccess) {
    return Fail(ErrorOf(result, name));
  }
  return {};
}

Result<> NcclCollectives::Check(std::chrono::nanoseconds waited) {
  if (broken_) {
    return *broken_;
  }
  NcclResult result = NcclResult::kSuccess;
  const NcclResult asked = api_.comm_get_async_error(comm_, &result);
  result = Worse(asked, result);
  if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
    return Fail(ErrorOf(result, Stuck()));
  }
  if (abort_requested_ || std::chrono::steady_clock::now() - peers_seen_ >= kLookAtPeers) {
    INFERD_TRY(Look(Stuck()));
  }
  if (waited > options_.call_deadline) {
    return Fail(DeadlineExceeded(
        "{}: not done after {} ms; peers: {}", Stuck(), options_.call_deadline.count(), Peers()));
  }
  return {};
}

template <class Call>
Result<> NcclCollectives::Run(std::string_view name, Call call) {
  if (broken_) {
    return broken_->WithContext(name);
  }
  if (abort_requested_) {
    return Look(name);
  }
  ++calls_;
  recorded_ = recorded_ || queue_.Recording();
  NcclResult result = api_.group_start();
  if (result == NcclResult::kSuccess) {
    result = call();
    result = Worse(result, api_.group_end());
  }
  if (broken_) {  // while an emulated device ran what is before it
    return broken_->WithContext(name);
  }
  INFERD_TRY(Settle(result, fmt::format("{} {}", name, calls_), Deadline(options_.call_deadline)));
  Remember(name);
  return {};
}

void NcclCollectives::Remember(std::string_view name) {
  if (queue_.Recording()) {
    return;
  }
  if (outstanding_.size() == kMaxOutstanding) {
    outstanding_.pop_front();
  }
  outstanding_.push_back({queue_.Mark(), name, calls_});
}

Result<> NcclCollectives::AllReduceSum(float* data, std::size_t count) {
  return Run("all_reduce", [&] {
    return api_.all_reduce(data, data, count, kNcclFloat32, kNcclSum, comm_, queue_.stream());
  });
}

Result<> NcclCollectives::AllGather(const void* in, void* out, std::span<const std::size_t> bytes) {
  INFERD_CHECK(bytes.size() == places_.size());
  const std::size_t own = bytes[Rank()];
  if (std::all_of(bytes.begin(), bytes.end(), [own](std::size_t b) { return b == own; })) {
    return Run("all_gather",
               [&] { return api_.all_gather(in, out, own, kNcclUint8, comm_, queue_.stream()); });
  }
  return Run("all_gather", [&] {
    NcclResult result = NcclResult::kSuccess;
    std::size_t at = 0;
    for (std::size_t r = 0; r < bytes.size(); at += bytes[r++]) {
      const bool in_place = r == Rank() && At(out, at) == in;
      if (own > 0 && !in_place) {
        result = Worse(result,
                       api_.send(in, own, kNcclUint8, static_cast<int>(r), comm_, queue_.stream()));
      }
      if (bytes[r] > 0 && !in_place) {
        result = Worse(
            result,
            api_.recv(
                At(out, at), bytes[r], kNcclUint8, static_cast<int>(r), comm_, queue_.stream()));
      }
    }
    return result;
  });
}

Result<> NcclCollectives::AllToAllV(const void* send,
                                    std::span<const std::size_t> send_bytes,
                                    void* recv,
                                    std::span<const std::size_t> recv_bytes) {
  INFERD_CHECK(send_bytes.size() == places_.size() && recv_bytes.size() == places_.size());
  return Run("all_to_all_v", [&] {
    NcclResult result = NcclResult::kSuccess;
    std::size_t from = 0;
    std::size_t to = 0;
    for (std::size_t r = 0; r < send_bytes.size(); from += send_bytes[r], to += recv_bytes[r++]) {
      const int peer = static_cast<int>(r);
      if (send_bytes[r] > 0) {
        result = Worse(
            result,
            api_.send(At(send, from), send_bytes[r], kNcclUint8, peer, comm_, queue_.stream()));
      }
      if (recv_bytes[r] > 0) {
        result =
            Worse(result,
                  api_.recv(At(recv, to), recv_bytes[r], kNcclUint8, peer, comm_, queue_.stream()));
      }
    }
    return result;
  });
}

Result<> NcclCollectives::Send(const void* data, std::size_t bytes, int to) {
  INFERD_TRY(CheckPeer("send to", to, options_.rank, options_.size));
  return Run("send",
             [&] { return api_.send(data, bytes, kNcclUint8, to, comm_, queue_.stream()); });
}

Result<> NcclCollectives::Recv(void* data, std::size_t bytes, int from) {
  INFERD_TRY(CheckPeer("receive from", from, options_.rank, options_.size));
  return Run("recv",
             [&] { return api_.recv(data, bytes, kNcclUint8, from, comm_, queue_.stream()); });
}

}  // namespace inferd::comm
