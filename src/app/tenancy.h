// SPDX-License-Identifier: Apache-2.0
// Keys, limits and the ledger as the settings ask for them, and the key file's reload.
#pragma once

#include "app/file_watch.h"
#include "inferd/config.h"
#include "inferd/result.h"
#include "tenant/gate.h"

#include <memory>
#include <string>

namespace inferd::app {

struct Tenancy {
  std::shared_ptr<tenant::Gate> gate;  // null: neither keys nor a ledger were asked for
  std::unique_ptr<FileWatch> watch;    // of the key file; ends before the gate
};

/// A bad key file is an error here; later, when it changes, the old keys stay and the log says why.
Result<Tenancy> OpenTenancy(const TenantConfig& config,
                            const std::string& model_name,
                            const std::string& model_version);

}  // namespace inferd::app
