// SPDX-License-Identifier: Apache-2.0
// Whose request it is and how urgent: user, safety_identifier, priority and service_tier. The
// scheduler serves users in turn at equal priority (engine/fair_queue.h).
#pragma once

#include "api/core/fields.h"
#include "inferd/result.h"

#include <cstdint>
#include <string>

namespace inferd::api {

struct Caller {
  std::string user;           // empty: not told
  std::int32_t priority = 0;  // lower goes first
};

/// `priority` as it is given, else what service_tier stands for.
Result<Caller> ParseCaller(const Fields& fields);

/// The text that tells users apart, cut to what is worth keeping.
std::string UserKey(std::string user);

}  // namespace inferd::api
