// SPDX-License-Identifier: Apache-2.0
#include "engine/fair_queue.h"

#include "base/check.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace inferd::engine {
namespace {

/// Virtual time of one token at weight 1: enough to divide by weights.
constexpr std::int64_t kTokenTime = 1 << 16;
/// Entries without an unfinished sequence that are remembered on one level, at most: clients can
/// invent users.
constexpr std::size_t kMaxIdle = 1024;

struct ByArrival {
  bool operator()(const Sequence* a, const Sequence* b) const { return a->order < b->order; }
};

/// The flows of one level by name. Who has nothing left is remembered while his time is ahead of
/// the others': else he would be rid of it by leaving for a moment.
template <typename Entry>
class Flows {
 public:
  Entry* Find(std::string_view name) {
    auto& entry = entries_[std::string(name)];
    if (entry == nullptr) {
      entry = std::make_unique<Entry>();
      entry->number = next_number_++;
      ++num_idle_;
    }
    num_idle_ -= entry->num_unfinished++ == 0 ? 1 : 0;
    return entry.get();
  }

  /// One of its sequences has ended. May forget the entry.
  void Leave(Entry* entry) {
    if (--entry->num_unfinished > 0 || ++num_idle_ < sweep_at_) {
      return;
    }
    Sweep([this](const Flow& flow) { return flow.time <= turns.now(); });
    if (num_idle_ > kMaxIdle) {
      Sweep([](const Flow& /*flow*/) { return true; });
    }
    sweep_at_ = std::max<std::size_t>(16, 2 * num_idle_);
  }

  const std::map<std::string, std::unique_ptr<Entry>>& entries() const { return entries_; }

  Turns turns;

 private:
  template <typename Forgets>
  void Sweep(const Forgets& forgets) {
    num_idle_ -= std::erase_if(entries_, [&](const auto& item) {
      return item.second->num_unfinished == 0 && forgets(*item.second);
    });
  }

  std::map<std::string, std::unique_ptr<Entry>> entries_;
  std::uint64_t next_number_ = 0;
  std::size_t num_idle_ = 0;
  std::size_t sweep_at_ = 16;
};

}  // namespace

struct FairShare;

struct FairUser : Flow {
  FairShare* share = nullptr;
  std::set<Sequence*, ByArrival> waiting;  // have not had a row
};

struct FairShare : Flow {
  FairClass* peers = nullptr;
  Flows<FairUser> users;
};

struct FairClass {
  Flows<FairShare> shares;
  std::set<Sequence*, RunsBefore> returning;  // have had a row
  std::int64_t num_unfinished = 0;
};

// ---- Turns

void Turns::Begin(Flow* flow) {
  if (!flow->waits) {
    flow->waits = true;
    flow->time = std::max(flow->time, now_);
    waiting_.insert(flow);
  }
}

void Turns::End(Flow* flow) {
  if (flow->waits) {
    waiting_.erase(flow);
    flow->waits = false;
  }
}

std::int64_t Turns::StartOf(const Flow& flow) const { return std::max(now_, flow.time); }

void Turns::Serve(Flow* flow, std::int64_t cost) {
  INFERD_CHECK(flow->waits);
  now_ = StartOf(*flow);
  Charge(flow, cost);
}

void Turns::Charge(Flow* flow, std::int64_t cost) {
  if (flow->waits) {
    waiting_.erase(flow);
  }
  flow->time += cost * kTokenTime / flow->weight;
  if (flow->waits) {
    waiting_.insert(flow);
  }
}

// ---- FairQueue

FairQueue::FairQueue() = default;
FairQueue::~FairQueue() = default;

FairUser* FairQueue::UserOf(const SequenceRequest& request) {
  auto& peers = classes_[request.priority];
  if (peers == nullptr) {
    peers = std::make_unique<FairClass>();
  }
  // Users without a tenant have a share each.
  const bool has_tenant = !request.tenant.empty();
  FairShare* share = peers->shares.Find(has_tenant ? "t" + request.tenant : "u" + request.user);
  share->peers = peers.get();
  share->weight = std::max(request.weight, 1);
  FairUser* user = share->users.Find(has_tenant ? request.user : "");
  user->share = share;
  return user;
}

void FairQueue::Arrive(Sequence* sequence, std::int64_t cost) {
  sequence->fair_user = UserOf(sequence->request);
  sequence->cost = std::max<std::int64_t>(cost, 1);
  ++sequence->fair_user->share->peers->num_unfinished;
}

void FairQueue::Push(Sequence* sequence) {
  FairUser* user = sequence->fair_user;
  FairShare* share = user->share;
  ++size_;
  if (sequence->planned_once) {
    INFERD_CHECK(share->peers->returning.insert(sequence).second);
    return;
  }
  INFERD_CHECK(user->waiting.insert(sequence).second);
  share->users.turns.Begin(user);
  share->peers->shares.turns.Begin(share);
}

void FairQueue::Remove(Sequence* sequence) {
  FairUser* user = sequence->fair_user;
  FairShare* share = user->share;
  --size_;
  if (sequence->planned_once) {
    INFERD_CHECK(share->peers->returning.erase(sequence) == 1);
    return;
  }
  INFERD_CHECK(user->waiting.erase(sequence) == 1);
  if (user->waiting.empty()) {
    share->users.turns.End(user);
  }
  if (share->users.turns.First() == nullptr) {
    share->peers->shares.turns.End(share);
  }
}

Sequence* FairQueue::First() {
  for (const auto& [priority, peers] : classes_) {
    if (!peers->returning.empty()) {
      return *peers->returning.begin();
    }
    if (const Flow* first = peers->shares.turns.First(); first != nullptr) {
      const auto* share = static_cast<const FairShare*>(first);
      const auto* user = static_cast<const FairUser*>(share->users.turns.First());
      Sequence* sequence = *user->waiting.begin();
      sequence->turn = peers->shares.turns.StartOf(*share);
      return sequence;
    }
  }
  return nullptr;
}

void FairQueue::Serve(Sequence* sequence) {
  if (!sequence->planned_once) {
    FairUser* user = sequence->fair_user;
    FairShare* share = user->share;
    share->users.turns.Serve(user, sequence->cost);
    share->peers->shares.turns.Serve(share, sequence->cost);
  }
  Remove(sequence);
}

void FairQueue::Leave(Sequence* sequence, std::int64_t served) {
  FairUser* user = sequence->fair_user;
  FairShare* share = user->share;
  FairClass* peers = share->peers;
  if (sequence->planned_once) {
    share->users.turns.Charge(user, served - sequence->cost);
    peers->shares.turns.Charge(share, served - sequence->cost);
  }
  sequence->fair_user = nullptr;
  share->users.Leave(user);
  peers->shares.Leave(share);
  if (--peers->num_unfinished == 0) {
    classes_.erase(sequence->request.priority);
  }
}

void FairQueue::Clear() {
  size_ = 0;
  for (const auto& [priority, peers] : classes_) {
    peers->returning.clear();
    for (const auto& [share_name, share] : peers->shares.entries()) {
      peers->shares.turns.End(share.get());
      for (const auto& [user_name, user] : share->users.entries()) {
        share->users.turns.End(user.get());
        user->waiting.clear();
      }
    }
  }
}

std::size_t FairQueue::num_users() const {
  std::size_t count = 0;
  for (const auto& [priority, peers] : classes_) {
    for (const auto& [name, share] : peers->shares.entries()) {
      count += share->users.entries().size();
    }
  }
  return count;
}

}  // namespace inferd::engine
