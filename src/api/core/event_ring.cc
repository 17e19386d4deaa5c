// SPDX-License-Identifier: Apache-2.0
#include "api/core/event_ring.h"

#include "base/check.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace inferd::api {
namespace {

std::uint64_t NextInboxId() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

EventRing::EventRing(std::uint32_t capacity)
    : mask_(capacity - 1), cells_(std::make_unique<leader::OutputEvent[]>(capacity)) {
  INFERD_CHECK(capacity != 0 && (capacity & mask_) == 0);
}

std::size_t EventRing::Put(std::span<leader::OutputEvent> events) {
  if (spilled_.load(std::memory_order_acquire)) {
    return Spill(events);
  }
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (tail_local_ - head_seen_ > mask_) {
      head_seen_ = head_.load(std::memory_order_acquire);
      if (tail_local_ - head_seen_ > mask_) {
        return i + Spill(events.subspan(i));
      }
    }
    cells_[tail_local_++ & mask_] = std::move(events[i]);
  }
  return events.size();
}

std::size_t EventRing::Spill(std::span<leader::OutputEvent> events) {
  Commit();  // the consumer must find what is in the ring before it sees the flag
  const std::size_t limit = (std::size_t{mask_} + 1) * EventInbox::kSpillPerRingSlot;
  const std::lock_guard lock(spill_mutex_);
  const std::size_t count = std::min(events.size(), limit - std::min(limit, spill_.size()));
  spill_.insert(spill_.end(),
                std::make_move_iterator(events.begin()),
                std::make_move_iterator(events.begin() + static_cast<std::ptrdiff_t>(count)));
  spilled_.store(!spill_.empty(), std::memory_order_seq_cst);
  return count;
}

std::vector<leader::OutputEvent> EventRing::TakeSpill() {
  const std::lock_guard lock(spill_mutex_);
  spilled_.store(false, std::memory_order_seq_cst);
  return std::exchange(spill_, {});
}

EventInbox::EventInbox(std::uint32_t ring_capacity)
    : ring_capacity_(ring_capacity),
      id_(NextInboxId()),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  INFERD_CHECK_MSG(wake_.valid(), "eventfd failed: out of file descriptors at start-up");
  rings_[0] = std::make_unique<EventRing>(ring_capacity_);
  num_rings_.store(1, std::memory_order_release);
}

EventInbox::~EventInbox() = default;

EventRing* EventInbox::RingOfThisThread() {
  // Few inboxes and few threads: a short list is the fastest map.
  thread_local std::vector<std::pair<std::uint64_t, EventRing*>> known;
  for (const auto& [id, ring] : known) {
    if (id == id_) {
      return ring;
    }
  }
  const std::lock_guard lock(mutex_);
  const std::size_t count = num_rings_.load(std::memory_order_relaxed);
  if (count == rings_.size()) {
    return nullptr;
  }
  rings_[count] = std::make_unique<EventRing>(ring_capacity_);
  num_rings_.store(count + 1, std::memory_order_release);
  known.emplace_back(id_, rings_[count].get());
  return rings_[count].get();
}

void EventInbox::Publish(std::span<leader::OutputEvent> events) {
  EventRing* ring = RingOfThisThread();
  std::size_t taken = 0;
  if (ring != nullptr) {
    taken = ring->Put(events);
    ring->Commit();
  } else {
    const std::lock_guard lock(shared_mutex_);
    taken = rings_[0]->Put(events);
    rings_[0]->Commit();
  }
  if (taken < events.size()) {
    ReportLost(events.subspan(taken));
  }
  Wake();
}

void EventInbox::ReportLost(std::span<const leader::OutputEvent> events) {
  const std::lock_guard lock(mutex_);
  for (const auto& event : events) {
    if (lost_.empty() || lost_.back() != event.stream) {
      lost_.push_back(event.stream);
    }
  }
  any_lost_.store(true, std::memory_order_seq_cst);
}

std::vector<leader::StreamId> EventInbox::TakeLost() {
  if (!any_lost_.load(std::memory_order_acquire)) {
    return {};
  }
  const std::lock_guard lock(mutex_);
  any_lost_.store(false, std::memory_order_relaxed);
  return std::exchange(lost_, {});
}

void EventInbox::Wake() {
  if (!armed_.load(std::memory_order_seq_cst) || !armed_.exchange(false)) {
    return;
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n =
      write(wake_.get(), &one, sizeof one);  // cannot fail: the counter is far from full
}

void EventInbox::ClearWake() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(wake_.get(), &count, sizeof count);
}

bool EventInbox::Arm() {
  armed_.store(true, std::memory_order_seq_cst);
  bool pending = any_lost_.load(std::memory_order_seq_cst);
  const std::size_t count = num_rings_.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < count; ++i) {
    pending = pending || !rings_[i]->empty();
  }
  if (pending) {
    armed_.store(false, std::memory_order_relaxed);
  }
  return !pending;
}

}  // namespace inferd::api
