// SPDX-License-Identifier: Apache-2.0
// Test main that is also the worker binary: the leader under test starts this program again with
// "worker".
#include "base/log.h"
#include "cluster/harness.h"

#include <gtest/gtest.h>

#if INFERD_HAS_CUDA_EMU
#include "kernels/simt/runtime_api.h"

#include <cstdlib>
#include <filesystem>
#endif
#include <string_view>

namespace {

/// The worker that finds (and removes) the file INFERD_TEST_FAULT has a device that fails after
/// some launches, as an illegal access would make it.
void ArmFault() {
#if INFERD_HAS_CUDA_EMU
  constexpr int kLaunches = 400;
  const char* const file = std::getenv("INFERD_TEST_FAULT");
  std::error_code ignored;
  if (file != nullptr && std::filesystem::remove(file, ignored)) {
    inferd::simt::SetFaultAfterLaunches(0, kLaunches, cudaErrorIllegalAddress);
  }
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "worker") {
    ArmFault();
    return inferd::cluster::WorkerMain(argc, argv);
  }
  inferd::log::Init(inferd::log::Level::kInfo, "test");
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
