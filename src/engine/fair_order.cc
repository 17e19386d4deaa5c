// SPDX-License-Identifier: Apache-2.0
#include "engine/fair_order.h"

#include "base/check.h"

#include <algorithm>

namespace inferd::engine {

std::int64_t FairOrder::Arrive(std::int32_t priority,
                               std::string_view tenant,
                               std::string_view user,
                               std::int64_t cost) {
  Class& peers = classes_[priority];
  const auto [entry, is_new] = peers.users.try_emplace({std::string(tenant), std::string(user)});
  std::int64_t& num_users = peers.num_users[std::string(tenant)];
  num_users += is_new ? 1 : 0;
  ++peers.num_unfinished;
  User& own = entry->second;
  ++own.num_unfinished;
  const std::int64_t slowness = tenant.empty() ? 1 : num_users;
  own.turn = std::max(peers.now, own.turn) + std::max<std::int64_t>(cost, 1) * slowness;
  return own.turn;
}

void FairOrder::Served(std::int32_t priority, std::int64_t turn) {
  const auto peers = classes_.find(priority);
  INFERD_CHECK(peers != classes_.end());
  peers->second.now = std::max(peers->second.now, turn);
}

// A user who has nothing left owes nothing: what was served has moved the virtual time past his
// turns. What was not served does not count. Never given back is more than was charged: of a tenant
// with several users each pays for the others' parts too, and how many they were is not kept.
void FairOrder::Leave(std::int32_t priority,
                      std::string_view tenant,
                      std::string_view user,
                      std::int64_t unserved) {
  const auto peers = classes_.find(priority);
  INFERD_CHECK(peers != classes_.end());
  const auto own = peers->second.users.find({std::string(tenant), std::string(user)});
  INFERD_CHECK(own != peers->second.users.end());
  own->second.turn -= unserved;
  if (--own->second.num_unfinished == 0) {
    peers->second.users.erase(own);
    const auto count = peers->second.num_users.find(std::string(tenant));
    if (--count->second == 0) {
      peers->second.num_users.erase(count);
    }
  }
  if (--peers->second.num_unfinished == 0) {
    classes_.erase(peers);
  }
}

}  // namespace inferd::engine
