// SPDX-License-Identifier: Apache-2.0
// Hands a step's events from engine threads to one I/O thread: one bounded single-producer ring per
// engine thread, published once a step, with at most one eventfd write a step. The engine side
// never waits: a burst that the ring cannot hold spills into a longer bounded list behind it, and
// what does not fit there is reported as lost, and the I/O thread fails those streams.
#pragma once

#include "base/file.h"
#include "leader/inference_service.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace inferd::api {

/// One producer thread, one consumer thread.
class EventRing {
 public:
  explicit EventRing(std::uint32_t capacity);  // a power of two

  /// Producer. Takes as many events as fit, in order; they are visible by the next Commit.
  std::size_t Put(std::span<leader::OutputEvent> events);
  void Commit() { tail_.store(tail_local_, std::memory_order_seq_cst); }

  /// Consumer.
  bool empty() const {
    return head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_seq_cst) &&
           !spilled_.load(std::memory_order_seq_cst);
  }
  template <class F>
  void Drain(F&& visit) {
    DrainRing(visit);
    if (spilled_.load(std::memory_order_seq_cst)) {
      DrainRing(visit);  // what was committed before the spill began
      for (leader::OutputEvent& event : TakeSpill()) {
        visit(event);
      }
    }
  }

 private:
  template <class F>
  void DrainRing(F& visit) {
    std::uint32_t head = head_.load(std::memory_order_relaxed);
    const std::uint32_t tail = tail_.load(std::memory_order_acquire);
    for (; head != tail; ++head) {
      leader::OutputEvent event = std::move(cells_[head & mask_]);
      head_.store(head + 1, std::memory_order_release);
      visit(event);
    }
  }
  std::size_t Spill(std::span<leader::OutputEvent> events);
  std::vector<leader::OutputEvent> TakeSpill();

  const std::uint32_t mask_;
  std::unique_ptr<leader::OutputEvent[]> cells_;
  alignas(64) std::atomic<std::uint32_t> head_{0};
  alignas(64) std::atomic<std::uint32_t> tail_{0};
  std::uint32_t tail_local_ = 0, head_seen_ = 0;  // producer's
  std::mutex spill_mutex_;
  std::vector<leader::OutputEvent> spill_;  // guarded; events after those of the ring
  /// Set with the first event in spill_, cleared when the consumer takes them; while it is set the
  /// producer adds nothing to the ring.
  std::atomic<bool> spilled_{false};
};

/// The sink of one I/O thread. Publish may be called by any number of threads: the first
/// kMaxProducers get a ring of their own at their first call, later ones share one under a lock.
/// Lives until the service has stopped.
class EventInbox final : public leader::EventSink {
 public:
  static constexpr std::size_t kMaxProducers = 64;
  static constexpr std::uint32_t kRingCapacity = 1U << 13;
  static constexpr std::size_t kSpillPerRingSlot = 32;  // bound of the list behind a ring

  explicit EventInbox(std::uint32_t ring_capacity = kRingCapacity);
  ~EventInbox() override;

  /// Engine threads.
  void Publish(std::span<leader::OutputEvent> events) override;

  /// I/O thread. The descriptor becomes readable after a Publish that followed Arm.
  int wake_fd() const { return wake_.get(); }
  void ClearWake();
  /// True: nothing is pending and the next Publish will wake. False: drain again.
  bool Arm();
  /// Any thread: the consumer had taken everything and waits to be woken.
  bool idle() const { return armed_.load(std::memory_order_acquire); }
  template <class F>
  void Drain(F&& visit) {
    const std::size_t count = num_rings_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < count; ++i) {
      rings_[i]->Drain(visit);
    }
  }
  /// Streams of which events were lost since the last call.
  std::vector<leader::StreamId> TakeLost();

 private:
  EventRing* RingOfThisThread();
  void Wake();
  void ReportLost(std::span<const leader::OutputEvent> events);

  const std::uint32_t ring_capacity_;
  const std::uint64_t id_;  // distinguishes inboxes in the producers' thread-local table
  std::array<std::unique_ptr<EventRing>, kMaxProducers + 1> rings_;  // [0]: shared by late-comers
  std::mutex shared_mutex_;                                          // producers of rings_[0]
  std::atomic<std::size_t> num_rings_{0};
  base::UniqueFd wake_;
  std::atomic<bool> armed_{false};
  std::mutex mutex_;  // adding a ring, the lost list
  std::vector<leader::StreamId> lost_;
  std::atomic<bool> any_lost_{false};
};

}  // namespace inferd::api
