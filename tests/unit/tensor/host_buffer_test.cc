// SPDX-License-Identifier: Apache-2.0
#include "tensor/host_buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

namespace inferd::tensor {
namespace {

TEST(HostBuffer, IsZeroedAndAligned) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{4097}, std::size_t{5} << 20}) {
    Result<HostBuffer> buffer = HostBuffer::Allocate(size);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(buffer->size(), size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 4096, 0u);
    EXPECT_EQ(buffer->data()[size - 1], std::byte{0});
    buffer->span()[size - 1] = std::byte{1};
  }
}

TEST(HostBuffer, EmptyHasNoMemory) {
  Result<HostBuffer> buffer = HostBuffer::Allocate(0);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->data(), nullptr);
}

TEST(HostBuffer, MovesItsMemory) {
  HostBuffer a = std::move(HostBuffer::Allocate(64)).value();
  std::byte* data = a.data();
  HostBuffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  HostBuffer c;
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.size(), 64u);
}

TEST(HostBuffer, TooMuchIsAnError) {
  EXPECT_EQ(HostBuffer::Allocate(SIZE_MAX).error().code(), Code::kResourceExhausted);
  EXPECT_EQ(HostBuffer::Allocate(std::size_t{1} << 62).error().code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace inferd::tensor
