// SPDX-License-Identifier: Apache-2.0
// The queue of those without a row, and whose turn it is at equal priority: start-time fair
// queueing in two levels. A tenant has a virtual time, the work it was given over its weight, and
// the one with the least goes next; so do the users within a tenant. Who sends much queues behind
// himself; who sends little is let in next. Without tenants and users: the order of arrival.
//
// A sequence is charged an estimate when it gets its first row, and what it was really served when
// it ends, so that over time the tokens served are as the weights.
#pragma once

#include "engine/sequence.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

namespace inferd::engine {

/// One of those who are served in turn: a tenant, or a user of one.
struct Flow {
  std::int64_t time = 0;  // virtual: where its next sequence begins
  std::int64_t weight = 1;
  std::uint64_t number = 0;  // of arrival
  std::int64_t num_unfinished = 0;
  bool waits = false;
};

/// Whose turn it is on one level. Does not own the flows.
class Turns {
 public:
  /// It has something that waits from now on: what it did not claim before is lost.
  void Begin(Flow* flow);
  /// Nothing of it waits any more.
  void End(Flow* flow);
  /// The next one, null: none waits.
  Flow* First() const { return waiting_.empty() ? nullptr : *waiting_.begin(); }
  /// Where a sequence of the flow would begin; never before one that has begun.
  std::int64_t StartOf(const Flow& flow) const;
  /// A sequence of it begins.
  void Serve(Flow* flow, std::int64_t cost);
  /// It was given `cost` more than it was charged for, or less.
  void Charge(Flow* flow, std::int64_t cost);

  std::int64_t now() const { return now_; }

 private:
  struct Before {
    bool operator()(const Flow* a, const Flow* b) const {
      return a->time != b->time ? a->time < b->time : a->number < b->number;
    }
  };

  std::int64_t now_ = 0;
  std::set<Flow*, Before> waiting_;
};

struct FairClass;  // those of one priority
struct FairUser;

/// Owner: the scheduler. Holds one entry per user with an unfinished sequence, and for a while
/// those of whom were given more than their share last. Plain arithmetic on what it is told: the
/// same calls give the same order.
class FairQueue {
 public:
  FairQueue();
  ~FairQueue();
  FairQueue(const FairQueue&) = delete;
  FairQueue& operator=(const FairQueue&) = delete;

  /// Counts a sequence that has arrived, waiting or not. `cost`, its work in tokens by estimate.
  void Arrive(Sequence* sequence, std::int64_t cost);
  /// It waits. One that has had a row goes before all of its priority that have not.
  void Push(Sequence* sequence);
  /// It waits no more, without having got a row.
  void Remove(Sequence* sequence);
  /// Who is next, null: nobody waits. Its Sequence::turn is set, so that RunsBefore holds for it.
  Sequence* First();
  /// First() has got a row.
  void Serve(Sequence* sequence);
  /// It has ended, and waits no more; it was given `served` tokens of prompt and output.
  void Leave(Sequence* sequence, std::int64_t served);
  /// Nobody waits any more; what was charged stays.
  void Clear();

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  /// Users that are remembered; for tests.
  std::size_t num_users() const;

 private:
  FairUser* UserOf(const SequenceRequest& request);

  std::map<std::int32_t, std::unique_ptr<FairClass>> classes_;  // by priority
  std::size_t size_ = 0;
};

}  // namespace inferd::engine
