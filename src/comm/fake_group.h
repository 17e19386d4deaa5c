// SPDX-License-Identifier: Apache-2.0
// The fake backend with its knobs: deadlines of milliseconds and faults on order, for tests of what
// stands above comm.
#pragma once

#include "comm/communicator.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace inferd::comm {

struct FakeGroupOptions {
  int size = 1;
  std::chrono::milliseconds call_deadline{30'000};
  /// Asked at the start of every call of every rank, from that rank's thread, with the number of
  /// calls this rank has made before. An error makes the rank die there: its call returns the
  /// error, the others' calls fail with kUnavailable. A hook that blocks makes the rank late.
  std::function<Result<>(int rank, std::uint64_t call)> before_call;
};

/// Communicators share the group's state and may be used from one thread each. Destroying one is
/// the death of that rank.
std::vector<std::unique_ptr<Communicator>> MakeFakeGroup(const FakeGroupOptions& options);

}  // namespace inferd::comm
