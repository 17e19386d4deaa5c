// SPDX-License-Identifier: Apache-2.0
// Test main that is also the worker binary: the leader under test starts this program again with
// "worker".
#include "base/log.h"
#include "cluster/harness.h"

#include <gtest/gtest.h>

#include <string_view>

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "worker") {
    return inferd::cluster::WorkerMain(argc, argv);
  }
  inferd::log::Init(inferd::log::Level::kInfo, "test");
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
