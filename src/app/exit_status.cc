// SPDX-License-Identifier: Apache-2.0
#include "app/exit_status.h"

namespace inferd::app {

ExitStatus StatusOf(const Error& error) {
  switch (error.code()) {
    case Code::kResourceExhausted:
      return ExitStatus::kDoesNotFit;
    case Code::kDataLoss:
      return ExitStatus::kDeviceLost;
    case Code::kUnavailable:
    case Code::kDeadlineExceeded:
    case Code::kAborted:
      return ExitStatus::kPeerLost;
    case Code::kInternal:
    case Code::kUnknown:
      return ExitStatus::kInternal;
    default:
      return ExitStatus::kConfig;
  }
}

}  // namespace inferd::app
