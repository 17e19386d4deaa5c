// SPDX-License-Identifier: Apache-2.0
// How the process ends, for those who restart it (docs/operations.md has the table).
#pragma once

#include "inferd/result.h"

namespace inferd::app {

enum class ExitStatus : int {
  kAsked = 0,       // it was asked to end, or has done what it was asked
  kConfig = 1,      // a flag, file, model or port is wrong: the same start fails again
  kDoesNotFit = 2,  // model and settings do not fit the memory or the devices
  kDeviceLost = 3,  // workers or their devices failed and could not be replaced
  kPeerLost = 4,    // another host, or a service that was needed, did not come or went away
  kInternal = 5,    // a bug of inferd
};

/// The status that an error of a command ends the process with.
ExitStatus StatusOf(const Error& error);

}  // namespace inferd::app
