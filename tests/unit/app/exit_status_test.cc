// SPDX-License-Identifier: Apache-2.0
#include "app/exit_status.h"

#include "base/error.h"

#include <gtest/gtest.h>

namespace inferd::app {
namespace {

TEST(ExitStatus, SaysWhetherTheSameStartWouldFailAgain) {
  EXPECT_EQ(StatusOf(InvalidArgument("a flag")), ExitStatus::kConfig);
  EXPECT_EQ(StatusOf(NotFound("a model")), ExitStatus::kConfig);
  EXPECT_EQ(StatusOf(FailedPrecondition("a port")), ExitStatus::kConfig);
  EXPECT_EQ(StatusOf(ResourceExhausted("memory")), ExitStatus::kDoesNotFit);
  EXPECT_EQ(StatusOf(DataLoss("a device")), ExitStatus::kDeviceLost);
  EXPECT_EQ(StatusOf(DeadlineExceeded("a node")), ExitStatus::kPeerLost);
  EXPECT_EQ(StatusOf(Unavailable("a leader")), ExitStatus::kPeerLost);
  EXPECT_EQ(StatusOf(Internal("a bug")), ExitStatus::kInternal);
}

}  // namespace
}  // namespace inferd::app
