// SPDX-License-Identifier: Apache-2.0
// Which experts a token goes to, and with what weights: Device::Route on the CPU.
#pragma once

#include "ops/device.h"

namespace inferd::ops {

void RouteTokens(const RouteTask& task);

}  // namespace inferd::ops
