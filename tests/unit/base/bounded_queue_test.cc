// SPDX-License-Identifier: Apache-2.0
#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace inferd::base {
namespace {

TEST(BoundedQueue, IsFirstInFirstOut) {
  BoundedQueue<int> queue(4);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_EQ(queue.TryPop(), 1);
  EXPECT_EQ(queue.TryPop(), 2);
  EXPECT_EQ(queue.TryPop(), std::nullopt);
}

TEST(BoundedQueue, RefusesWhenFullAndLeavesTheValueAlone) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(*second, 2);
  EXPECT_EQ(queue.size(), 1U);
}

TEST(BoundedQueue, DrainsAfterClose) {
  BoundedQueue<int> queue(4);
  EXPECT_TRUE(queue.TryPush(1));
  queue.Close();
  EXPECT_TRUE(queue.closed());
  EXPECT_FALSE(queue.TryPush(2));
  EXPECT_EQ(queue.PopFor(std::chrono::hours(1)), 1);
  EXPECT_EQ(queue.PopFor(std::chrono::hours(1)),
            std::nullopt);  // at once: nothing can come any more
}

TEST(BoundedQueue, PopForGivesUp) {
  BoundedQueue<int> queue(1);
  EXPECT_EQ(queue.PopFor(std::chrono::milliseconds(1)), std::nullopt);
}

TEST(BoundedQueue, CloseWakesAWaiter) {
  BoundedQueue<int> queue(1);
  std::thread waiter([&] { EXPECT_EQ(queue.PopFor(std::chrono::hours(1)), std::nullopt); });
  queue.Close();
  waiter.join();
}

TEST(BoundedQueue, LosesNothingBetweenThreads) {
  BoundedQueue<int> queue(8);
  constexpr int kPerThread = 5000;
  std::vector<std::thread> producers;
  for (int t = 0; t < 3; ++t) {
    producers.emplace_back([&queue, t] {
      for (int i = 0; i < kPerThread; ++i) {
        while (!queue.TryPush(t * kPerThread + i)) {
          std::this_thread::yield();
        }
      }
    });
  }
  std::vector<int> last(3, -1);
  int count = 0;
  while (count < 3 * kPerThread) {
    const auto value = queue.PopFor(std::chrono::seconds(10));
    ASSERT_TRUE(value.has_value());
    const auto thread = static_cast<std::size_t>(*value / kPerThread);
    EXPECT_GT(*value, last[thread]);  // each thread's values stay in order
    last[thread] = *value;
    ++count;
  }
  for (std::thread& producer : producers) {
    producer.join();
  }
  EXPECT_EQ(queue.size(), 0U);
}

}  // namespace
}  // namespace inferd::base
