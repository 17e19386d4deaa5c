// SPDX-License-Identifier: Apache-2.0
#include "tensor/host_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace inferd::tensor {
namespace {

bool IsZero(const HostBuffer& buffer) {
  return std::all_of(
      buffer.data(), buffer.data() + buffer.size(), [](std::byte b) { return b == std::byte{0}; });
}

TEST(HostArena, PartsAreZeroedAlignedAndApart) {
  HostArena arena;
  std::vector<HostBuffer> parts;
  for (int i = 0; i < 50; ++i) {  // more than one mapping
    parts.push_back(std::move(arena.Allocate(3'000'001)).value());
    HostBuffer& part = parts.back();
    EXPECT_EQ(part.size(), 3'000'001u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part.data()) % 128, 0u);
    EXPECT_TRUE(IsZero(part));
    std::fill_n(part.data(), part.size(), static_cast<std::byte>(i + 1));
  }
  for (int i = 0; i < 50; ++i) {
    const HostBuffer& part = parts[static_cast<std::size_t>(i)];
    EXPECT_EQ(part.data()[0], static_cast<std::byte>(i + 1));
    EXPECT_EQ(part.data()[part.size() - 1], static_cast<std::byte>(i + 1));
  }
}

TEST(HostArena, NeighboursShareAMapping) {
  HostArena arena;
  const HostBuffer a = std::move(arena.Allocate(1000)).value();
  const HostBuffer b = std::move(arena.Allocate(1000)).value();
  EXPECT_EQ(b.data() - a.data(), 1024);
}

TEST(HostArena, PartsOutliveIt) {
  auto arena = std::make_unique<HostArena>();
  HostBuffer a = std::move(arena->Allocate(100)).value();
  HostBuffer b = std::move(arena->Allocate(100)).value();
  arena.reset();
  b = HostBuffer();
  a.span()[99] = std::byte{1};
  EXPECT_EQ(a.data()[99], std::byte{1});
}

TEST(HostArena, ManyBytesHaveAMappingOfTheirOwn) {
  HostArena arena;
  const HostBuffer a = std::move(arena.Allocate(1000)).value();
  const HostBuffer large = std::move(arena.Allocate(std::size_t{100} << 20)).value();
  const HostBuffer b = std::move(arena.Allocate(1000)).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large.data()) % 4096, 0u);
  EXPECT_EQ(b.data() - a.data(), 1024);
}

TEST(HostArena, RefusesWhatCannotBe) {
  HostArena arena;
  EXPECT_EQ(std::move(arena.Allocate(0)).value().data(), nullptr);
  EXPECT_EQ(arena.Allocate(std::size_t{1} << 62).error().code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace inferd::tensor
