// SPDX-License-Identifier: Apache-2.0
// The bound on the priorities that an operator gives: far enough from std::int32_t's ends that a
// key's and an objective's can be added.
#pragma once

#include <cstdint>

namespace inferd::tenant {

/// Of a key and of an inference objective, both ways.
inline constexpr std::int32_t kMaxPriority = 1'000'000;

}  // namespace inferd::tenant
