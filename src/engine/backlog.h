// SPDX-License-Identifier: Apache-2.0
// What waits for its first token on a replica, and how long a newcomer would: for admission before
// anything is queued.
//
// The wait is predicted from the work ahead and the rate at which work left the queue lately. Ahead
// of a newcomer is all work of better priority, its tenant's own, and of every other tenant as much
// as fair shares let pass (FairQueue): a tenant that sends little waits little, however long the
// others' queues are.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace inferd::engine {

/// One sequence, as it is when it arrives.
struct WaitingWork {
  std::int32_t priority = 0;
  std::string share;  // whose it is: a tenant's name, or a user's
  std::int32_t weight = 1;
  std::int64_t prompt_tokens = 0;  // 0 of siblings: they take the first one's
  std::int64_t cost = 0;           // tokens, prompt and likely output
};

/// Plain arithmetic on times that the caller gives, steady nanoseconds that never go back. Not
/// thread-safe.
class Backlog {
 public:
  /// Names what Arrive() has counted.
  struct Place {
    std::int32_t priority = 0;
    std::string share;
    std::int64_t prompt_tokens = 0;
    std::int64_t cost = 0;
  };

  Place Arrive(const WaitingWork& work, std::int64_t now_ns);
  /// Its first token has come.
  void Begin(const Place& place, std::int64_t now_ns);
  /// It has ended before.
  void Leave(const Place& place, std::int64_t now_ns);

  /// Until a newcomer would get its turn; 0 while nothing waits, or the rate is not known yet.
  std::int64_t WaitNs(const WaitingWork& newcomer, std::int64_t now_ns) const;
  /// Until so many sequences, or tokens of prompts, have left the queue at the rate of late;
  /// nullopt: not known.
  std::optional<std::int64_t> NsUntilLeft(std::int64_t sequences, std::int64_t prompt_tokens) const;

  /// For a newcomer that is refused and could be taken in `soonest_ns`: when it shall come back,
  /// after those of its share that were refused before it and at the rate at which they can be
  /// served. One who asks again too soon delays its own share only.
  std::int64_t AppointNs(const WaitingWork& newcomer, std::int64_t soonest_ns, std::int64_t now_ns);

  std::int64_t prompt_tokens() const { return sum_.prompt_tokens; }
  std::int64_t sequences() const { return sum_.sequences; }

 private:
  struct Amount {
    std::int64_t sequences = 0;
    std::int64_t prompt_tokens = 0;
    std::int64_t cost = 0;
  };
  struct Share {
    std::int32_t weight = 1;
    Amount waiting;
  };
  /// What has left the queue over the time in which something waited; the past fades.
  struct Rate {
    double seconds = 0;
    double sequences = 0;
    double prompt_tokens = 0;
    double cost = 0;
  };

  void Pass(std::int64_t now_ns);
  void Take(const Place& place);
  bool rate_known() const;

  using Name = std::pair<std::int32_t, std::string>;  // priority and share
  std::map<Name, Share> shares_;
  Amount sum_;
  Rate rate_;
  std::int64_t then_ns_ = 0;
  std::map<Name, std::int64_t> appointed_ns_;  // until then those that come back are enough
};

}  // namespace inferd::engine
