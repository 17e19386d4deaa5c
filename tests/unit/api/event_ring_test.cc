// SPDX-License-Identifier: Apache-2.0
#include "api/core/event_ring.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <thread>
#include <vector>

namespace inferd::api {
namespace {

leader::OutputEvent Event(std::uint32_t slot, std::int32_t number) {
  leader::OutputEvent event;
  event.stream.slot = slot;
  event.choice = number;
  return event;
}

bool Woken(const EventInbox& inbox, int timeout_ms) {
  pollfd watched{inbox.wake_fd(), POLLIN, 0};
  return poll(&watched, 1, timeout_ms) == 1;
}

TEST(EventInbox, WakesOnlyWhenArmedAndOncePerArming) {
  EventInbox inbox;
  std::vector<leader::OutputEvent> events{Event(1, 0)};
  inbox.Publish(events);
  EXPECT_FALSE(Woken(inbox, 0));
  EXPECT_FALSE(inbox.Arm()) << "something is pending";
  int seen = 0;
  inbox.Drain([&](leader::OutputEvent&) { ++seen; });
  EXPECT_EQ(seen, 1);
  EXPECT_TRUE(inbox.Arm());
  events = {Event(1, 1)};
  inbox.Publish(events);
  EXPECT_TRUE(Woken(inbox, 1000));
  inbox.ClearWake();
  events = {Event(1, 2)};
  inbox.Publish(events);
  EXPECT_FALSE(Woken(inbox, 0));
}

TEST(EventInbox, ABurstSpillsInOrderAndBeyondItsBoundIsReported) {
  constexpr std::uint32_t kRing = 4;
  constexpr auto kHeld = static_cast<std::uint32_t>(kRing + kRing * EventInbox::kSpillPerRingSlot);
  EventInbox inbox(kRing);
  std::vector<leader::OutputEvent> events;
  for (std::uint32_t i = 0; i < kHeld + 2; ++i) {
    events.push_back(Event(i, 0));
  }
  inbox.Publish(events);
  EXPECT_FALSE(inbox.Arm()) << "something is pending";
  std::vector<std::uint32_t> slots;
  inbox.Drain([&](leader::OutputEvent& event) { slots.push_back(event.stream.slot); });
  ASSERT_EQ(slots.size(), kHeld);
  for (std::uint32_t i = 0; i < kHeld; ++i) {
    ASSERT_EQ(slots[i], i);
  }
  const auto lost = inbox.TakeLost();
  ASSERT_EQ(lost.size(), 2U);
  EXPECT_EQ(lost[0].slot, kHeld);
  EXPECT_EQ(lost[1].slot, kHeld + 1);
  EXPECT_TRUE(inbox.TakeLost().empty());
  events = {Event(9, 0)};
  inbox.Publish(events);
  slots.clear();
  inbox.Drain([&](leader::OutputEvent& event) { slots.push_back(event.stream.slot); });
  EXPECT_EQ(slots, std::vector<std::uint32_t>{9}) << "there is room again";
  EXPECT_TRUE(inbox.Arm());
}

/// Bursts that spill again and again while the consumer drains: order holds, no wake is missed.
TEST(EventInbox, SpillsKeepTheOrderWhileTheConsumerDrains) {
  constexpr std::int32_t kEvents = 20'000;
  EventInbox inbox(16);
  std::atomic<std::int32_t> seen{0};
  std::thread producer([&] {
    for (std::int32_t i = 0; i < kEvents;) {
      std::vector<leader::OutputEvent> events;
      for (std::int32_t k = 0; k < 40; ++k) {
        events.push_back(Event(0, i++));
      }
      inbox.Publish(events);
      while (i - seen.load() > 400) {
        std::this_thread::yield();
      }
    }
  });
  std::int32_t next = 0;
  while (next < kEvents) {
    if (inbox.Arm()) {
      ASSERT_TRUE(Woken(inbox, 10'000)) << next;
      inbox.ClearWake();
    }
    inbox.Drain([&](leader::OutputEvent& event) { EXPECT_EQ(event.choice, next++); });
    seen.store(next);
  }
  producer.join();
  EXPECT_TRUE(inbox.TakeLost().empty());
}

/// More producers than rings, each in order, nothing lost, no wake missed.
TEST(EventInbox, KeepsTheOrderOfEachProducer) {
  constexpr std::uint32_t kProducers = 70;
  constexpr std::int32_t kEach = 200;
  EventInbox inbox;
  std::vector<std::thread> producers;
  for (std::uint32_t p = 0; p < kProducers; ++p) {
    producers.emplace_back([&inbox, p] {
      for (std::int32_t i = 0; i < kEach; i += 2) {
        std::vector<leader::OutputEvent> events{Event(p, i), Event(p, i + 1)};
        inbox.Publish(events);
      }
    });
  }
  std::vector<std::int32_t> next(kProducers, 0);
  std::int32_t total = 0;
  while (total < static_cast<std::int32_t>(kProducers) * kEach) {
    if (inbox.Arm()) {
      ASSERT_TRUE(Woken(inbox, 10'000)) << total;
      inbox.ClearWake();
    }
    inbox.Drain([&](leader::OutputEvent& event) {
      EXPECT_EQ(event.choice, next[event.stream.slot]++);
      ++total;
    });
  }
  for (auto& producer : producers) {
    producer.join();
  }
  EXPECT_TRUE(inbox.TakeLost().empty());
}

}  // namespace
}  // namespace inferd::api
