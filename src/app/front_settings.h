// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "app/settings.h"

#include <vector>

namespace inferd::app {

/// Appends the settings of the sections http, grpc, batch, tenant, log and observability, bound to
/// `config`.
void AddFrontSettings(Config* config, std::vector<Setting>* out);

}  // namespace inferd::app
