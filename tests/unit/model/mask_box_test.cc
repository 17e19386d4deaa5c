// SPDX-License-Identifier: Apache-2.0
#include "model/mask_box.h"

#include <gtest/gtest.h>

#include <thread>

namespace inferd::model {
namespace {

constexpr std::int64_t kLong = 20'000;

spec::TokenMask Mask(std::uint64_t generation, std::int64_t step, std::int32_t row) {
  spec::TokenMask mask;
  mask.generation = generation;
  mask.step = step;
  mask.row = row;
  mask.kind = spec::TokenMask::Kind::kOnly;
  mask.tokens = {static_cast<std::int32_t>(step * 100) + row};
  return mask;
}

TEST(MaskBoxTest, GivesEachSampleItsMaskOnce) {
  MaskBox box(4);
  box.Reset(1);
  box.Give(Mask(1, 5, 2));
  box.Give(Mask(1, 4, 2));
  box.Give(Mask(1, 5, 3));
  EXPECT_EQ(box.Take(5, 2, kLong)->tokens.front(), 502);
  EXPECT_EQ(box.Take(4, 2, kLong)->tokens.front(), 402);
  EXPECT_EQ(box.Take(5, 3, kLong)->tokens.front(), 503);
  EXPECT_EQ(box.Take(5, 3, 1).error().code(), Code::kDeadlineExceeded);
}

TEST(MaskBoxTest, WaitsForAMaskThatComesLate) {
  MaskBox box(4);
  box.Reset(1);
  std::thread giver([&] {
    box.Give(Mask(1, 9, 0));
    box.Give(Mask(1, 10, 1));
  });
  EXPECT_EQ(box.Take(10, 1, kLong)->tokens.front(), 1001);
  giver.join();
}

TEST(MaskBoxTest, AbortWakesAndResetForgets) {
  MaskBox box(4);
  box.Reset(1);
  box.Give(Mask(1, 1, 1));
  std::thread aborter([&] { box.Abort(); });
  EXPECT_EQ(box.Take(2, 0, kLong).error().code(), Code::kAborted);
  aborter.join();
  box.Reset(2);
  box.Give(Mask(1, 2, 0));  // late, of the generation that has ended
  EXPECT_EQ(box.Take(1, 1, 1).error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(box.Take(2, 0, 1).error().code(), Code::kDeadlineExceeded);
  box.Give(Mask(2, 2, 0));
  EXPECT_TRUE(box.Take(2, 0, 1).ok());
}

TEST(MaskBoxTest, HoldsABoundedNumber) {
  MaskBox box(1);
  box.Reset(1);
  for (std::int64_t step = 0; step < 1000; ++step) {
    box.Give(Mask(1, step, 0));
  }
  EXPECT_TRUE(box.Take(0, 0, 1).ok());
  EXPECT_EQ(box.Take(999, 0, kLong).error().code(), Code::kInternal);
}

}  // namespace
}  // namespace inferd::model
