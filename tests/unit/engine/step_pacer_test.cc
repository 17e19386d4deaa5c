// SPDX-License-Identifier: Apache-2.0
#include "engine/step_pacer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace inferd::engine {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kNoBound = std::numeric_limits<std::int64_t>::max();

TEST(StepPacerTest, WithoutATargetThereIsNoBound) {
  StepPacer pacer({});
  pacer.Learn(4, 0, 10 * kMs);
  pacer.Learn(4, 100, 400 * kMs);
  EXPECT_EQ(pacer.MostPromptTokens(), kNoBound);
}

TEST(StepPacerTest, BeforeTheFirstPromptThereIsNoBound) {
  StepPacer pacer({.target_itl_ns = 150 * kMs});
  pacer.Learn(4, 0, 10 * kMs);
  EXPECT_EQ(pacer.MostPromptTokens(), kNoBound);
}

TEST(StepPacerTest, PromptsGetWhatDecodesLeaveOfTheTarget) {
  StepPacer pacer({.target_itl_ns = 150 * kMs});
  pacer.Learn(4, 0, 30 * kMs);
  pacer.Learn(4, 300, 630 * kMs);  // 2 ms a token beside the decodes
  EXPECT_EQ(pacer.MostPromptTokens(), 60);
}

TEST(StepPacerTest, StepsOfThatSizeTakeTheTarget) {
  StepPacer pacer({.target_itl_ns = 150 * kMs});
  pacer.Learn(0, 512, 512 * kMs);
  pacer.Learn(8, 0, 25 * kMs);
  // A token costs more the further it is into its prompt.
  std::int64_t worst = 0;
  for (std::int64_t position = 0; position < 8192;) {
    const std::int64_t count = pacer.MostPromptTokens();
    ASSERT_GE(count, 32);
    const std::int64_t token_ns = kMs + position * kMs / 4096;
    const std::int64_t busy = 25 * kMs + count * token_ns;
    worst = busy > worst ? busy : worst;
    pacer.Learn(8, count, busy);
    position += count;
  }
  EXPECT_LT(worst, 160 * kMs);
}

TEST(StepPacerTest, PromptsGetAsLongAsDecodesWhereTheTargetCannotBeHeld) {
  StepPacer pacer({.target_itl_ns = 150 * kMs});
  pacer.Learn(2, 0, 400 * kMs);
  pacer.Learn(2, 100, 900 * kMs);  // 5 ms a token
  EXPECT_EQ(pacer.MostPromptTokens(), 80);
}

TEST(StepPacerTest, APageGoesOnInAnyCase) {
  StepPacer pacer({.target_itl_ns = kMs, .least = 32});
  pacer.Learn(2, 0, 10 * kMs);
  pacer.Learn(2, 100, 900 * kMs);
  EXPECT_EQ(pacer.MostPromptTokens(), 32);
}

TEST(StepPacerTest, StagesShareTheTarget) {
  StepPacer pacer({.target_itl_ns = 200 * kMs, .num_stages = 2});
  pacer.Learn(4, 0, 20 * kMs);
  pacer.Learn(4, 100, 120 * kMs);
  EXPECT_EQ(pacer.MostPromptTokens(), 80);
}

TEST(StepPacerTest, TheEndOfAPromptTeachesNothing) {
  StepPacer pacer({.target_itl_ns = 150 * kMs});
  pacer.Learn(4, 0, 30 * kMs);
  pacer.Learn(4, 300, 630 * kMs);
  pacer.Learn(4, 1, 31 * kMs);
  EXPECT_EQ(pacer.MostPromptTokens(), 60);
}

TEST(StepPacerTest, AClockThatStandsStillTeachesNothing) {
  StepPacer pacer({.target_itl_ns = 150 * kMs});
  pacer.Learn(0, 300, 0);
  EXPECT_EQ(pacer.MostPromptTokens(), kNoBound);
}

TEST(StepPacerTest, AFasterMachineIsNoticed) {
  StepPacer pacer({.target_itl_ns = 150 * kMs});
  pacer.Learn(0, 300, 3000 * kMs);
  for (int i = 0; i < 40; ++i) {
    pacer.Learn(0, 300, 300 * kMs);
  }
  EXPECT_NEAR(static_cast<double>(pacer.MostPromptTokens()), 150, 5);
}

}  // namespace
}  // namespace inferd::engine
