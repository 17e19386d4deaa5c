// SPDX-License-Identifier: Apache-2.0
// JoinNccl: the ranks show each other what they are, decide alike, and start.
#include "base/error.h"
#include "base/log.h"
#include "comm/arguments.h"
#include "comm/nccl.h"
#include "comm/nccl_collectives.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace inferd::comm {
namespace {

/// What a rank shows to the others; texts end with a zero.
struct Card {
  std::uint64_t generation = 0;
  std::int32_t version = 0;  // of NCCL; 0: it has none, and `why`
  char host[64] = {};
  char device[64] = {};
  char why[256] = {};
};

template <std::size_t kSize>
void Write(std::string_view text, char (&into)[kSize]) {
  std::copy_n(text.begin(), std::min(text.size(), kSize - 1), into);
}

/// The host's communicator for what is in host memory, NCCL for what is on the device.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const GroupOptions& options,
                   const NcclApi& api,
                   std::vector<std::string> places,
                   std::unique_ptr<Communicator> host,
                   tensor::DeviceQueue& queue)
      : host_(std::move(host)), collectives_(options, api, std::move(places), *host_, queue) {}

  Result<> Start(const Deadline& deadline) { return collectives_.Start(deadline); }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  Result<> AllReduceSum(std::span<float> data) override { return host_->AllReduceSum(data); }
  Result<> AllGather(std::span<const float> in,
                     std::span<float> out,
                     std::span<const std::size_t> counts) override {
    return host_->AllGather(in, out, counts);
  }
  Result<> AllToAllV(std::span<const std::byte> send,
                     std::span<const std::size_t> send_bytes,
                     std::span<std::byte> recv,
                     std::span<const std::size_t> recv_bytes) override {
    return host_->AllToAllV(send, send_bytes, recv, recv_bytes);
  }
  Result<> Broadcast(std::span<std::byte> data, int root) override {
    return host_->Broadcast(data, root);
  }
  Result<> Send(std::span<const std::byte> data, int to) override { return host_->Send(data, to); }
  Result<> Recv(std::span<std::byte> data, int from) override { return host_->Recv(data, from); }
  Result<> Barrier() override { return host_->Barrier(); }
  Result<> CheckPeers() override { return host_->CheckPeers(); }
  DeviceCollectives* device() override { return &collectives_; }
  void Abort() override {
    collectives_.RequestAbort();
    host_->Abort();
  }

 private:
  const std::unique_ptr<Communicator> host_;
  NcclCollectives collectives_;
};

Result<std::vector<Card>> ExchangeCards(const Card& own, Communicator& host) {
  std::vector<Card> cards(static_cast<std::size_t>(host.size()));
  cards[static_cast<std::size_t>(host.rank())] = own;
  for (int r = 0; r < host.size(); ++r) {
    Card& card = cards[static_cast<std::size_t>(r)];
    INFERD_TRY(host.Broadcast(std::as_writable_bytes(std::span(&card, 1)), r));
  }
  return cards;
}

std::string Place(const Card& card) { return fmt::format("{} {}", card.host, card.device); }

/// Refuses what no backend setting mends.
Result<> CheckCards(const std::vector<Card>& cards, const GroupOptions& options) {
  for (std::size_t r = 0; r < cards.size(); ++r) {
    if (cards[r].generation != cards[0].generation) {
      return FailedPrecondition("group {}: rank {} on {} is of generation {}, rank 0 on {} of {}",
                                options.id,
                                r,
                                Place(cards[r]),
                                cards[r].generation,
                                Place(cards[0]),
                                cards[0].generation);
    }
    if (std::string_view(cards[r].device).starts_with("MIG-")) {
      return InvalidArgument(
          "group {}: rank {} on {} is a MIG slice, and slices have no peer access: NCCL cannot "
          "join them. Serve a whole model on each (--dp), or let the ranks exchange through host "
          "memory, much slower (--distributed-backend host)",
          options.id,
          r,
          Place(cards[r]));
    }
  }
  return {};
}

/// Why NCCL cannot serve these ranks; empty: it can.
std::string WhyNot(const std::vector<Card>& cards) {
  for (std::size_t r = 0; r < cards.size(); ++r) {
    if (cards[r].version == 0) {
      return fmt::format("rank {} on {}: {}", r, Place(cards[r]), cards[r].why);
    }
    if (cards[r].version != cards[0].version) {
      return fmt::format("rank {} on {} has NCCL {}, rank 0 on {} has {}; install the same",
                         r,
                         Place(cards[r]),
                         NcclVersionText(cards[r].version),
                         Place(cards[0]),
                         NcclVersionText(cards[0].version));
    }
    for (std::size_t other = 0; other < r; ++other) {
      if (Place(cards[other]) == Place(cards[r])) {
        return fmt::format(
            "ranks {} and {} share {}; NCCL wants a GPU for each", other, r, Place(cards[r]));
      }
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Communicator>> JoinNccl(const GroupOptions& options,
                                               std::unique_ptr<Communicator> host,
                                               tensor::DeviceQueue& queue,
                                               bool required) {
  INFERD_TRY(CheckGroup(options));
  const Deadline deadline(options.join_deadline);
  const tensor::FindFunction own = queue.collectives();
  const Result<NcclApi> api = own ? FindNccl(own, "the emulated NCCL") : LoadNccl();
  Card card;
  card.generation = options.generation;
  Write(queue.device_id(), card.device);
  if (::gethostname(card.host, sizeof(card.host) - 1) != 0) {
    Write("an unnamed host", card.host);
  }
  if (api.ok()) {
    card.version = api->version;
  } else {
    Write(api.error().message(), card.why);
  }
  INFERD_ASSIGN(const std::vector<Card> cards, ExchangeCards(card, *host));
  INFERD_TRY(CheckCards(cards, options));
  if (const std::string why = WhyNot(cards); !why.empty()) {
    if (required) {
      return Unavailable("group {} cannot use NCCL: {}", options.id, why);
    }
    if (options.rank == 0) {
      log::Warning("comm", "group {} exchanges through host memory: {}", options.id, why);
    }
    return host;
  }
  std::vector<std::string> places;
  for (const Card& of_rank : cards) {
    places.push_back(Place(of_rank));
  }
  auto group =
      std::make_unique<NcclCommunicator>(options, *api, std::move(places), std::move(host), queue);
  INFERD_TRY(group->Start(deadline));
  return std::unique_ptr<Communicator>(std::move(group));
}

}  // namespace inferd::comm
