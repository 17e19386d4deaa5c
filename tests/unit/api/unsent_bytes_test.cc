// SPDX-License-Identifier: Apache-2.0
#include "api/http/unsent_bytes.h"

#include <gtest/gtest.h>

#include <string>

namespace inferd::api {
namespace {

TEST(UnsentBytesTest, WhatLeavesInSmallPiecesDoesNotMoveTheRest) {
  UnsentBytes unsent;
  unsent.Append(std::string(1 << 20, 'a'));
  const char* const first = unsent.view().data();
  for (std::size_t sent = 1000; sent < (1U << 20); sent += 1000) {
    unsent.Drop(1000);
    ASSERT_EQ(unsent.view().data(), first + sent);
    ASSERT_EQ(unsent.size(), (1U << 20) - sent);
  }
  unsent.Drop(unsent.size());
  EXPECT_TRUE(unsent.empty());
}

TEST(UnsentBytesTest, OrderIsKeptHoweverMuchLeavesInBetween) {
  UnsentBytes unsent;
  std::string all;
  std::string left;
  for (int i = 0; i < 3000; ++i) {
    const std::string piece = std::to_string(i) + ",";
    all += piece;
    unsent.Append(piece);
    const std::size_t sent = (static_cast<std::size_t>(i) * 7) % (unsent.size() + 1);
    left += unsent.view().substr(0, sent);
    unsent.Drop(sent);
  }
  left += unsent.view();
  EXPECT_EQ(left, all);
}

}  // namespace
}  // namespace inferd::api
