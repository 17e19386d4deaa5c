// SPDX-License-Identifier: Apache-2.0
// Short makers of errors with formatted text: `return InvalidArgument("--tp {} is more than {}",
// tp, heads);`.
#pragma once

#include "inferd/result.h"

#include <fmt/core.h>

#include <string>
#include <utility>

namespace inferd {

#define INFERD_DEFINE_ERROR_MAKER(Name)                                       \
  template <class... Args>                                                    \
  Error Name(fmt::format_string<Args...> format, Args&&... args) {            \
    return {Code::k##Name, fmt::format(format, std::forward<Args>(args)...)}; \
  }

INFERD_DEFINE_ERROR_MAKER(Cancelled)
INFERD_DEFINE_ERROR_MAKER(Unknown)
INFERD_DEFINE_ERROR_MAKER(InvalidArgument)
INFERD_DEFINE_ERROR_MAKER(DeadlineExceeded)
INFERD_DEFINE_ERROR_MAKER(NotFound)
INFERD_DEFINE_ERROR_MAKER(AlreadyExists)
INFERD_DEFINE_ERROR_MAKER(PermissionDenied)
INFERD_DEFINE_ERROR_MAKER(ResourceExhausted)
INFERD_DEFINE_ERROR_MAKER(FailedPrecondition)
INFERD_DEFINE_ERROR_MAKER(Aborted)
INFERD_DEFINE_ERROR_MAKER(OutOfRange)
INFERD_DEFINE_ERROR_MAKER(Unimplemented)
INFERD_DEFINE_ERROR_MAKER(Internal)
INFERD_DEFINE_ERROR_MAKER(Unavailable)
INFERD_DEFINE_ERROR_MAKER(DataLoss)
INFERD_DEFINE_ERROR_MAKER(Unauthenticated)

#undef INFERD_DEFINE_ERROR_MAKER

}  // namespace inferd
