// SPDX-License-Identifier: Apache-2.0
#include "engine/replica_router.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace inferd::engine {
namespace {

std::vector<Hash128> Keys(std::uint64_t family, std::size_t count) {
  std::vector<Hash128> keys;
  for (std::size_t i = 0; i < count; ++i) {
    keys.push_back({family * 1000 + i, family});
  }
  return keys;
}

RouterOptions Options(std::int32_t num_replicas) {
  RouterOptions options;
  options.num_replicas = num_replicas;
  options.page_size = 10;
  options.max_imbalance_tokens = 500;
  return options;
}

TEST(ReplicaRouter, FollowsTheLongestPrefix) {
  ReplicaRouter router(Options(4));
  const auto first = router.Route(Keys(1, 8), 100);
  EXPECT_EQ(first.expected_cached_tokens, 0);
  const auto second = router.Route(Keys(2, 8), 100);
  EXPECT_NE(second.replica, first.replica);  // least busy
  const auto again = router.Route(Keys(1, 12), 100);
  EXPECT_EQ(again.replica, first.replica);
  EXPECT_EQ(again.expected_cached_tokens, 80);
  EXPECT_EQ(router.Route(Keys(2, 3), 100).replica, second.replica);
}

TEST(ReplicaRouter, PassesOverAReplicaThatIsFarBusier) {
  ReplicaRouter router(Options(2));
  const auto first = router.Route(Keys(1, 4), 400);
  EXPECT_EQ(router.Route(Keys(1, 4), 400).replica, first.replica);  // 400 <= 500 + 40
  const auto third = router.Route(Keys(1, 4), 400);                 // 800 > 540
  EXPECT_NE(third.replica, first.replica);
  EXPECT_EQ(third.expected_cached_tokens, 0);
  router.Finished(first.replica, 400);
  router.Finished(first.replica, 400);
  const auto fourth = router.Route(Keys(1, 4), 1);  // cached on both now: the less busy one
  EXPECT_EQ(fourth.replica, first.replica);
  EXPECT_EQ(fourth.expected_cached_tokens, 40);
}

TEST(ReplicaRouter, KeepsASessionAtItsReplica) {
  ReplicaRouter router(Options(4));
  std::set<std::int32_t> seen;
  std::vector<std::int32_t> homes;
  for (std::uint64_t i = 0; i < 40; ++i) {
    const std::uint64_t session = SessionKey("tenant", "session-" + std::to_string(i));
    const auto first = router.Route({}, 100, session);
    router.Finished(first.replica, 100);
    EXPECT_EQ(router.Route({}, 0, session).replica, first.replica);
    seen.insert(first.replica);
    homes.push_back(first.replica);
  }
  EXPECT_EQ(seen.size(), 4U);
  router.SetAvailable(homes[0], false);
  for (std::uint64_t i = 0; i < 40; ++i) {
    const auto now = router.Route({}, 0, SessionKey("tenant", "session-" + std::to_string(i)));
    EXPECT_EQ(now.replica == homes[i], homes[i] != homes[0]) << "only its own sessions move";
  }
  EXPECT_EQ(SessionKey("tenant", ""), 0U);
  EXPECT_NE(SessionKey("a", "b"), SessionKey("b", "a"));
}

TEST(ReplicaRouter, ASessionGoesBeforeAPrefixButNotToABusyReplica) {
  ReplicaRouter router(Options(2));
  const auto prefix = router.Route(Keys(1, 8), 1);
  router.Finished(prefix.replica, 1);
  std::uint64_t session = 1;  // one whose replica is the other one
  while (session < 100 && router.Route({}, 0, session).replica == prefix.replica) {
    ++session;
  }
  ASSERT_LT(session, 100U) << "all sessions went to one replica";
  const auto own = router.Route(Keys(1, 8), 501, session);
  EXPECT_NE(own.replica, prefix.replica);
  EXPECT_EQ(own.expected_cached_tokens, 0);
  EXPECT_EQ(router.Route(Keys(1, 8), 1, session).replica, prefix.replica);  // 501 > 500
}

TEST(ReplicaRouter, SpreadsEqualChoices) {
  ReplicaRouter router(Options(8));
  std::set<std::int32_t> seen;
  for (std::uint64_t i = 0; i < 8; ++i) {
    seen.insert(router.Route(Keys(100 + i, 2), 50).replica);
  }
  EXPECT_EQ(seen.size(), 8U);  // each request made its replica busier than the rest
}

TEST(ReplicaRouter, UnavailableReplicasGetNothingAndForget) {
  ReplicaRouter router(Options(2));
  const auto first = router.Route(Keys(1, 4), 10);
  router.SetAvailable(first.replica, false);
  const auto second = router.Route(Keys(1, 4), 10);
  EXPECT_EQ(second.replica, 1 - first.replica);
  router.SetAvailable(second.replica, false);
  EXPECT_EQ(router.Route(Keys(1, 4), 10).replica, -1);
  router.SetAvailable(first.replica, true);
  const auto third = router.Route(Keys(1, 4), 10);
  EXPECT_EQ(third.replica, first.replica);
  EXPECT_EQ(third.expected_cached_tokens, 0);
  EXPECT_EQ(router.outstanding_tokens(first.replica), 20);
}

TEST(ReplicaRouter, RemembersABoundedNumberOfBlocks) {
  RouterOptions options = Options(2);
  options.max_blocks = 16;
  ReplicaRouter router(options);
  for (std::uint64_t i = 0; i < 100; ++i) {
    const auto choice = router.Route(Keys(i, 4), 1);
    router.Finished(choice.replica, 1);
    EXPECT_LE(router.num_blocks(), 16U);
  }
  EXPECT_EQ(router.Route(Keys(99, 4), 1).expected_cached_tokens, 40);
  EXPECT_EQ(router.Route(Keys(0, 4), 1).expected_cached_tokens, 0);
}

}  // namespace
}  // namespace inferd::engine
