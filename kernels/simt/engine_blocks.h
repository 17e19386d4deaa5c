// SPDX-License-Identifier: Apache-2.0
// What grid.cc needs of the engine.
#pragma once

#include "kernels/simt/engine.h"

#include <cstdint>
#include <functional>

namespace inferd::simt {

/// Runs blocks on this host thread as long as `next` gives one.
void RunBlocks(const char* name,
               dim3 grid,
               dim3 block,
               std::size_t shared_bytes,
               const std::function<void()>& body,
               const std::function<bool(std::uint64_t*)>& next);

void CountLaunch(std::uint64_t threads);

}  // namespace inferd::simt
