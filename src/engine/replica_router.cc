// SPDX-License-Identifier: Apache-2.0
#include "engine/replica_router.h"

#include "base/check.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace inferd::engine {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014).
constexpr std::uint64_t kGamma = 0x9e3779b97f4a7c15ULL;

std::uint64_t Mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace

std::uint64_t SessionKey(std::string_view tenant, std::string_view session) {
  if (session.empty()) {
    return 0;
  }
  const std::hash<std::string_view> hash;
  return std::max<std::uint64_t>(Mix(Mix(hash(tenant) + kGamma) + hash(session)), 1);
}

ReplicaRouter::ReplicaRouter(const RouterOptions& options)
    : options_(options),
      outstanding_(static_cast<std::size_t>(options.num_replicas), 0),
      index_(options.max_blocks),
      random_(options.seed) {
  INFERD_CHECK(options.num_replicas >= 1 && options.num_replicas <= 64);
  INFERD_CHECK(options.max_blocks >= 1 && options.page_size >= 1);
  available_ = ~std::uint64_t{0} >> (64 - options.num_replicas);
  nodes_.emplace_back();  // the list's head: newer is the oldest block, older the newest
}

std::uint64_t ReplicaRouter::NextRandom() { return Mix(random_ += kGamma); }

// Rendezvous hashing: a replica that goes or comes moves only its own sessions.
std::int32_t ReplicaRouter::ReplicaOfSession(std::uint64_t session) const {
  std::int32_t best = -1;
  std::uint64_t best_score = 0;
  for (std::uint64_t rest = available_; rest != 0; rest &= rest - 1) {
    const std::int32_t replica = std::countr_zero(rest);
    const std::uint64_t score = Mix(session + kGamma * static_cast<std::uint64_t>(replica + 1));
    if (best < 0 || score > best_score) {
      best = replica;
      best_score = score;
    }
  }
  return best;
}

// The least busy of the available, a random one of several.
std::int32_t ReplicaRouter::LeastBusy() {
  std::int32_t best = -1;
  std::uint64_t num_equal = 0;
  for (std::uint64_t rest = available_; rest != 0; rest &= rest - 1) {
    const std::int32_t replica = std::countr_zero(rest);
    const std::int64_t load = outstanding_tokens(replica);
    if (best < 0 || load < outstanding_tokens(best)) {
      best = replica;
      num_equal = 1;
    } else if (load == outstanding_tokens(best) && NextRandom() % ++num_equal == 0) {
      best = replica;
    }
  }
  return best;
}

ReplicaRouter::Choice ReplicaRouter::Route(std::span<const Hash128> keys,
                                           std::int64_t cost_tokens,
                                           std::uint64_t session) {
  Choice choice;
  choice.replica = LeastBusy();
  if (choice.replica < 0) {
    return choice;
  }
  const std::int64_t least_load = outstanding_tokens(choice.replica);
  // Replicas that hold all blocks up to here; those that drop out hold a prefix of the length
  // reached.
  std::uint64_t holders = available_;
  std::int64_t num_blocks = 0;
  std::vector<std::int64_t> cached(outstanding_.size(), 0);
  for (const Hash128& key : keys) {
    const std::uint32_t node = index_.Find(key);
    holders &= node == HashIndex::kNone ? 0 : nodes_[node].replicas;
    if (holders == 0) {
      break;
    }
    ++num_blocks;
    for (std::uint64_t rest = holders; rest != 0; rest &= rest - 1) {
      cached[static_cast<std::size_t>(std::countr_zero(rest))] = num_blocks * options_.page_size;
    }
  }
  for (std::int32_t replica = 0; replica < options_.num_replicas; ++replica) {
    const std::int64_t tokens = cached[static_cast<std::size_t>(replica)];
    const std::int64_t best = cached[static_cast<std::size_t>(choice.replica)];
    const std::int64_t load = outstanding_tokens(replica);
    const bool longer =
        tokens > best || (tokens == best && load < outstanding_tokens(choice.replica));
    if ((available_ >> replica & 1) != 0 && longer &&
        load - least_load <= options_.max_imbalance_tokens + tokens) {
      choice.replica = replica;
    }
  }
  if (const std::int32_t own = session == 0 ? -1 : ReplicaOfSession(session);
      own >= 0 && outstanding_tokens(own) - least_load <= options_.max_imbalance_tokens) {
    choice.replica = own;
  }
  choice.expected_cached_tokens = cached[static_cast<std::size_t>(choice.replica)];
  for (std::size_t i = keys.size();
       i-- > 0;) {  // last first: ends of chains are forgotten before their beginnings
    Remember(keys[i], choice.replica);
  }
  outstanding_[static_cast<std::size_t>(choice.replica)] += cost_tokens;
  return choice;
}

void ReplicaRouter::Finished(std::int32_t replica, std::int64_t cost_tokens) {
  std::int64_t& outstanding = outstanding_[static_cast<std::size_t>(replica)];
  outstanding -= cost_tokens;
  INFERD_CHECK(outstanding >= 0);
}

void ReplicaRouter::SetAvailable(std::int32_t replica, bool available) {
  const std::uint64_t bit = std::uint64_t{1} << replica;
  if (available) {
    available_ |= bit;
    return;
  }
  available_ &= ~bit;
  for (Block& block : nodes_) {
    block.replicas &= ~bit;
  }
}

std::int64_t ReplicaRouter::outstanding_tokens(std::int32_t replica) const {
  return outstanding_[static_cast<std::size_t>(replica)];
}

void ReplicaRouter::Remember(const Hash128& key, std::int32_t replica) {
  std::uint32_t node = index_.Find(key);
  if (node != HashIndex::kNone) {
    Unlink(node);
  } else {
    if (nodes_.size() <= options_.max_blocks) {
      node = static_cast<std::uint32_t>(nodes_.size());
      nodes_.emplace_back();
    } else {
      node = nodes_[0].newer;  // the one not used for longest
      Unlink(node);
      index_.Erase(nodes_[node].key);
      nodes_[node].replicas = 0;
    }
    nodes_[node].key = key;
    index_.Insert(key, node);
  }
  nodes_[node].replicas |= std::uint64_t{1} << replica;
  LinkNewest(node);
}

void ReplicaRouter::Unlink(std::uint32_t node) {
  nodes_[nodes_[node].older].newer = nodes_[node].newer;
  nodes_[nodes_[node].newer].older = nodes_[node].older;
}

void ReplicaRouter::LinkNewest(std::uint32_t node) {
  nodes_[node].older = nodes_[0].older;
  nodes_[node].newer = 0;
  nodes_[nodes_[0].older].newer = node;
  nodes_[0].older = node;
}

}  // namespace inferd::engine
