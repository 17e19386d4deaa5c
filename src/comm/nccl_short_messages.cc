// SPDX-License-Identifier: Apache-2.0
// Short messages of a group on devices: through memory that all ranks reach, where all do.
#include "base/error.h"
#include "base/log.h"
#include "comm/nccl_collectives.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace inferd::comm {
namespace {

/// What a rank shows to the others; `why` ends with a zero.
struct ShownMemory {
  tensor::PeerCard card{};
  bool well = false;
  char why[256] = {};
};

/// All ranks' cards; none when a rank has trouble, which rank 0 tells.
Result<std::vector<tensor::PeerCard>> Exchange(const Result<tensor::PeerCard>& own,
                                               std::span<const std::string> places,
                                               std::string_view group,
                                               Communicator& host) {
  std::vector<ShownMemory> all(places.size());
  ShownMemory& mine = all[static_cast<std::size_t>(host.rank())];
  mine.well = own.ok();
  if (own.ok()) {
    mine.card = *own;
  } else {
    const std::string& why = own.error().message();
    std::copy_n(why.begin(), std::min(why.size(), sizeof(mine.why) - 1), mine.why);
  }
  std::vector<tensor::PeerCard> cards;
  for (std::size_t r = 0; r < all.size(); ++r) {
    INFERD_TRY(host.Broadcast(std::as_writable_bytes(std::span(&all[r], 1)), static_cast<int>(r)));
    cards.push_back(all[r].card);
  }
  const auto bad =
      std::find_if(all.begin(), all.end(), [](const ShownMemory& s) { return !s.well; });
  if (bad == all.end()) {
    return cards;
  }
  if (host.rank() == 0) {
    log::Info("comm",
              "group {} uses NCCL for short messages too: rank {} on {}: {}",
              group,
              bad - all.begin(),
              places[static_cast<std::size_t>(bad - all.begin())],
              bad->why);
  }
  return std::vector<tensor::PeerCard>();
}

}  // namespace

Result<> NcclCollectives::SharePeerMemory(const Deadline& deadline) {
  tensor::PeerAccess* const access = queue_.peers();
  const std::chrono::milliseconds within(deadline.LeftMs(std::numeric_limits<int>::max()));
  const Result<tensor::PeerCard> own =
      access != nullptr
          ? access->Offer(within)
          : Result<tensor::PeerCard>(Unavailable("it has no memory that peers reach"));
  if (!own.ok() && own.error().code() == Code::kDeadlineExceeded) {
    return Fail(own.error());  // Nor would it get to a message by NCCL.
  }
  INFERD_ASSIGN(const std::vector<tensor::PeerCard> cards,
                Exchange(own, places_, options_.id, host_));
  if (cards.empty()) {
    return {};
  }
  Result<std::unique_ptr<tensor::PeerMemory>> opened = access->Open(options_.rank, cards);
  INFERD_ASSIGN(const std::vector<tensor::PeerCard> reached,
                Exchange(opened.ok() ? Result<tensor::PeerCard>(tensor::PeerCard{})
                                     : Result<tensor::PeerCard>(opened.error()),
                         places_,
                         options_.id,
                         host_));
  if (!reached.empty()) {
    peers_ = *std::move(opened);
  }
  return {};
}

template <class Call>
Result<bool> NcclCollectives::RunShort(std::string_view name, Call call) {
  if (peers_ == nullptr) {
    return false;
  }
  if (broken_) {
    return broken_->WithContext(name);
  }
  if (abort_requested_) {
    INFERD_TRY(Look(name));
  }
  INFERD_TRY(queue_.MakeCurrent());
  Result<bool> done = call();
  if (!done.ok()) {
    return Fail(done.error().WithContext(name));
  }
  if (broken_) {  // while an emulated device ran it
    return broken_->WithContext(name);
  }
  if (*done) {
    ++calls_;
    Remember(name);
  }
  return done;
}

Result<bool> NcclCollectives::ShortSum(float* data, std::int64_t count) {
  return RunShort("short sum", [&] { return peers_->Sum(data, count); });
}

Result<bool> NcclCollectives::ShortGather(const tensor::ColumnsTask& task) {
  return RunShort("short gather", [&] { return peers_->Gather(task); });
}

Result<bool> NcclCollectives::ShortSumThenNorm(const float* part,
                                               std::int64_t rows,
                                               const tensor::ThenNorm& norm) {
  return RunShort("short sum with norm", [&] { return peers_->SumThenNorm(part, rows, norm); });
}

Result<bool> NcclCollectives::ShortGatherThenNorm(const tensor::ColumnsTask& task,
                                                  const tensor::ThenNorm& norm) {
  return RunShort("short gather with norm", [&] { return peers_->GatherThenNorm(task, norm); });
}

}  // namespace inferd::comm
