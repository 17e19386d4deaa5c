// SPDX-License-Identifier: Apache-2.0
#include "api/core/event_ring.h"

#include <gtest/gtest.h>
#include <poll.h>

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

TEST(EventInbox, ReportsWhatDidNotFit) {
  EventInbox inbox(4);
  std::vector<leader::OutputEvent> events;
  for (std::uint32_t i = 0; i < 6; ++i) {
    events.push_back(Event(i, 0));
  }
  inbox.Publish(events);
  std::vector<std::uint32_t> slots;
  inbox.Drain([&](leader::OutputEvent& event) { slots.push_back(event.stream.slot); });
  EXPECT_EQ(slots, (std::vector<std::uint32_t>{0, 1, 2, 3}));
  const auto lost = inbox.TakeLost();
  ASSERT_EQ(lost.size(), 2U);
  EXPECT_EQ(lost[0].slot, 4U);
  EXPECT_EQ(lost[1].slot, 5U);
  EXPECT_TRUE(inbox.TakeLost().empty());
  events = {Event(9, 0)};
  inbox.Publish(events);
  slots.clear();
  inbox.Drain([&](leader::OutputEvent& event) { slots.push_back(event.stream.slot); });
  EXPECT_EQ(slots, std::vector<std::uint32_t>{9}) << "there is room again";
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
