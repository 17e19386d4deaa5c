// SPDX-License-Identifier: Apache-2.0
// --kv-events-config: JSON with vLLM's names.
#pragma once

#include "inferd/result.h"
#include "leader/kv_events.h"

#include <cstdint>
#include <string>

namespace inferd::app {

/// Of an empty text: no events. kInvalidArgument names the key, the value and what is possible;
/// every one of `num_replicas` must have an address.
Result<leader::KvEventsOptions> ParseKvEventsConfig(const std::string& text,
                                                    std::int32_t num_replicas);

}  // namespace inferd::app
