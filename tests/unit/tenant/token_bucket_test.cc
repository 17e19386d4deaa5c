// SPDX-License-Identifier: Apache-2.0
#include "tenant/token_bucket.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace inferd::tenant {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(TokenBucket, HoldsAMinutesAllowanceAndRefillsEvenly) {
  TokenBucket bucket(60, 0);
  EXPECT_EQ(bucket.Remaining(0), 60);
  for (int i = 0; i < 60; ++i) {
    EXPECT_EQ(bucket.WaitNs(1, 0), 0) << i;
    bucket.Take(1, 0);
  }
  EXPECT_EQ(bucket.Remaining(0), 0);
  EXPECT_EQ(bucket.WaitNs(1, 0), kSecond);
  EXPECT_EQ(bucket.ResetNs(0), 60 * kSecond);
  EXPECT_EQ(bucket.WaitNs(1, kSecond / 2), kSecond / 2);
  EXPECT_EQ(bucket.WaitNs(1, kSecond), 0);
  EXPECT_EQ(bucket.Remaining(10 * kSecond), 10);
  EXPECT_EQ(bucket.Remaining(1000 * kSecond), 60);  // never more than a minute's worth
  EXPECT_EQ(bucket.ResetNs(1000 * kSecond), 0);
}

TEST(TokenBucket, AnAmountAboveTheCapacityNeedsItFullAndLeavesADebt) {
  TokenBucket bucket(100, 0);
  EXPECT_EQ(bucket.WaitNs(250, 0), 0);
  bucket.Take(250, 0);
  EXPECT_EQ(bucket.Remaining(0), 0);
  EXPECT_EQ(bucket.WaitNs(1, 0), 151 * 60 * kSecond / 100);
  EXPECT_EQ(bucket.WaitNs(250, 0), 150 * kSecond);  // until it is full
  bucket.GiveBack(240, 0);                          // 10 were used
  EXPECT_EQ(bucket.Remaining(0), 90);
  EXPECT_EQ(bucket.WaitNs(250, 0), 6 * kSecond);
}

TEST(TokenBucket, GivingBackNeverOverfills) {
  TokenBucket bucket(100, 0);
  bucket.Take(50, 0);
  bucket.GiveBack(50, 60 * kSecond);  // meanwhile it has refilled
  EXPECT_EQ(bucket.Remaining(60 * kSecond), 100);
}

TEST(TokenBucket, AResizeKeepsWhatWasUsed) {
  TokenBucket bucket(100, 0);
  bucket.Take(30, 0);
  bucket.Resize(50, 0);
  EXPECT_EQ(bucket.limit(), 50);
  EXPECT_EQ(bucket.Remaining(0), 20);
  bucket.Resize(10, 0);
  EXPECT_EQ(bucket.Remaining(0), 0);
  EXPECT_EQ(bucket.WaitNs(1, 0), 21 * 6 * kSecond);
}

TEST(TokenBucket, TheAnsweredWaitIsEnoughAndNotMuchMore) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    const auto per_minute = static_cast<std::int64_t>(1 + random() % 1'000'000);
    TokenBucket bucket(per_minute, 0);
    std::int64_t now_ns = 0;
    for (int i = 0; i < 10; ++i) {
      now_ns += static_cast<std::int64_t>(random() % kSecond);
      const auto amount =
          static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(2 * per_minute));
      const std::int64_t wait_ns = bucket.WaitNs(amount, now_ns);
      if (wait_ns > 10) {
        TokenBucket early = bucket;
        EXPECT_GT(early.WaitNs(amount, now_ns + wait_ns * 9 / 10), 0);
      }
      now_ns += wait_ns;
      EXPECT_EQ(bucket.WaitNs(amount, now_ns), 0) << per_minute << " " << amount;
      bucket.Take(amount, now_ns);
    }
  }
}

}  // namespace
}  // namespace inferd::tenant
