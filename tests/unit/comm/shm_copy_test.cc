// SPDX-License-Identifier: Apache-2.0
#include "comm/shm_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace inferd::comm {
namespace {

// Every remainder at both ends, below and above the length from which stores pass the caches; what
// lies around is left alone.
TEST(ShmCopyTest, CopiesEveryByteAndNoOther) {
  constexpr std::size_t kGuard = 64;
  for (const std::size_t bytes : {0, 1, 15, 16, 17, 2047, 2048, 2049, 2063, 4096, 5000}) {
    for (std::size_t to_at = 0; to_at < 17; ++to_at) {
      for (const std::size_t from_at : {0, 1, 7}) {
        std::vector<std::byte> from(bytes + from_at);
        for (std::size_t i = 0; i < from.size(); ++i) {
          from[i] = static_cast<std::byte>(i * 7 + 1);
        }
        const std::byte mark{0xee};
        std::vector<std::byte> to(kGuard + to_at + bytes + kGuard, mark);
        CopyForOthers(to.data() + kGuard + to_at, from.data() + from_at, bytes);
        const auto begin = to.begin() + static_cast<std::ptrdiff_t>(kGuard + to_at);
        const auto end = begin + static_cast<std::ptrdiff_t>(bytes);
        EXPECT_TRUE(std::equal(begin, end, from.begin() + static_cast<std::ptrdiff_t>(from_at)));
        EXPECT_EQ(std::count(to.begin(), begin, mark), begin - to.begin());
        EXPECT_EQ(std::count(end, to.end(), mark), to.end() - end);
      }
    }
  }
}

}  // namespace
}  // namespace inferd::comm
