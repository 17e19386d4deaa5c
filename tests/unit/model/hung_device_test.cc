// SPDX-License-Identifier: Apache-2.0
// A device without a group that does not come to the end of its work: nothing waits for it longer
// than was said. In groups: nccl_test.cc.
#include "unit/model/hung_device.h"

#include <chrono>
#include <cstdint>
#include <vector>

namespace inferd::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

TEST(HungDeviceTest, AWaitEndsAtItsLimitWhereNobodyGuardsIt) {
  InAProcessOfItsOwn([] {
    auto device = ops::MakeDevice("cuda-emu", 1, {});
    ASSERT_TRUE(device.ok()) << device.error().message();
    (*device)->queue()->SetWaitLimit(milliseconds(50));
    const Blocked blocked(**device);
    const auto began = Clock::now();
    EXPECT_EQ(
        SayUnless((*device)->Wait(), Code::kInternal, "EMU-0 is not done after 50 ms*worker ends"),
        "");
    EXPECT_LT(Clock::now() - began, seconds(5));
    EXPECT_TRUE((*device)->Broken());
  });
}

TEST(HungDeviceTest, LooksAtAStepEndAtTheLimitAndCountForTheWait) {
  InAProcessOfItsOwn([] {
    auto made = ops::MakeDevice("cuda-emu", 1, {});
    ASSERT_TRUE(made.ok()) << made.error().message();
    ops::Device& device = **made;
    const std::vector<std::int32_t> zero = {0};
    ops::StepLimits limits;
    limits.rows = limits.sequences = limits.pages_per_sequence = 1;
    limits.kv_head_of = zero;
    limits.head_dim = 64;
    ASSERT_EQ(Say(device.Reserve(limits)), "");
    device.queue()->SetWaitLimit(seconds(3));
    const Blocked blocked(device);
    const ops::AttentionSequence sequence = {0, 1, 0, zero};
    ASSERT_EQ(device.BeginStep({.positions = zero, .sequences = {&sequence, 1}, .ids = zero}), 1);
    const std::uint64_t step = device.EndStep();
    const auto began = Clock::now();
    while (!device.IsStepDone(step) && Clock::now() - began < seconds(20)) {
      ::poll(nullptr, 0, 1);
    }
    const auto seen = Clock::now();
    EXPECT_GE(seen - began, seconds(3));
    EXPECT_LT(seen - began, seconds(20)) << "nobody sees it";
    EXPECT_EQ(SayUnless(device.WaitForStep(step), Code::kInternal, "not done after 3000 ms"), "");
    EXPECT_LT(Clock::now() - seen, seconds(3)) << "the limit is waited for once more";
    EXPECT_TRUE(device.IsStepDone(step));
  });
}

// Freeing would wait for it: a worker could not say why it ends.
TEST(HungDeviceTest, ItIsLeftWithItsMemory) {
  InAProcessOfItsOwn([] {
    auto device = ops::MakeDevice("cuda-emu", 1, {});
    ASSERT_TRUE(device.ok()) << device.error().message();
    auto memory = (*device)->Allocate(1'000, "a test");
    ASSERT_TRUE(memory.ok()) << memory.error().message();
    (*device)->queue()->SetWaitLimit(milliseconds(50));
    const Blocked blocked(**device);
    EXPECT_FALSE((*device)->Wait().ok());
    const auto began = Clock::now();
    *memory = ops::Memory();
    device->reset();
    EXPECT_LT(Clock::now() - began, seconds(5));
  });
}

}  // namespace
}  // namespace inferd::comm
