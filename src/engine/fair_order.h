// SPDX-License-Identifier: Apache-2.0
// Whose turn it is at equal priority. Self-clocked fair queueing: a sequence gets a turn when it
// arrives, the virtual time at which its user's share of the work would have finished it, and the
// lowest turn goes first. A user who sends much queues behind himself; one who sends little is let
// in next. Without tenants and users this is the order of arrival.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace inferd::engine {

/// Plain arithmetic on what it is told, so the same arrivals give the same order. Holds one entry
/// per user with an unfinished sequence. Owner: the scheduler.
class FairOrder {
 public:
  /// The turn of a new sequence; `cost` is its work in tokens, at least 1. A tenant with several
  /// users has one share, divided among those that have something here when a sequence arrives, so
  /// that a key gains nothing by inventing users. Users without a tenant have a share each.
  std::int64_t Arrive(std::int32_t priority,
                      std::string_view tenant,
                      std::string_view user,
                      std::int64_t cost);
  /// It has got a row: newcomers queue behind its turn.
  void Served(std::int32_t priority, std::int64_t turn);
  /// It has ended. `unserved`: the cost of one that never got a row, else 0: its user's next ones
  /// come that much earlier.
  void Leave(std::int32_t priority,
             std::string_view tenant,
             std::string_view user,
             std::int64_t unserved);

  bool empty() const { return classes_.empty(); }

 private:
  struct User {
    std::int64_t turn = 0;  // of its latest sequence
    std::int64_t num_unfinished = 0;
  };
  /// Those of one priority.
  struct Class {
    std::int64_t now = 0;  // virtual time: the latest turn served
    std::int64_t num_unfinished = 0;
    std::map<std::pair<std::string, std::string>, User> users;  // by tenant and user
    std::map<std::string, std::int64_t> num_users;              // by tenant
  };

  std::map<std::int32_t, Class> classes_;  // by priority
};

}  // namespace inferd::engine
