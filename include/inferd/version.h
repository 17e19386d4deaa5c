// SPDX-License-Identifier: Apache-2.0
// The version of this build.
#pragma once

#include <string_view>

namespace inferd {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace inferd
