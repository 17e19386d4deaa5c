// SPDX-License-Identifier: Apache-2.0
// Should a library throw where nobody expected it, the one request that met it fails, and the
// server goes on. Every port calls its handlers through this.
#pragma once

#include "base/error.h"

#include <exception>
#include <string_view>

namespace inferd::api {

/// What `work` returns, a Result; an Internal error that begins with `what` when it throws.
template <class Work>
auto Guarded(std::string_view what, Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    return Internal("{}: {}", what, error.what());
  }
}

}  // namespace inferd::api
