// SPDX-License-Identifier: Apache-2.0
#include "engine/prefix_hasher.h"

#include "engine/siphash.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

namespace inferd::engine {
namespace {

/// SipHash-2-4-128 of the bytes 0, 1, ... under the key 00 01 .. 0f, as hexadecimal digits.
std::string ReferenceHash(std::size_t num_bytes) {
  std::array<unsigned char, 256> bytes{};
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  SipHash128<2, 4> hash({0x0706050403020100ULL, 0x0f0e0d0c0b0a0908ULL});
  std::size_t i = 0;
  for (; i + 8 <= num_bytes; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    hash.Add(word);
  }
  std::uint64_t tail = 0;
  std::memcpy(&tail, bytes.data() + i, num_bytes - i);
  const Hash128 result = hash.Finish(tail, num_bytes - i);
  std::array<unsigned char, 16> digest{};
  std::memcpy(digest.data(), &result.low, 8);
  std::memcpy(digest.data() + 8, &result.high, 8);
  std::string text;
  for (const unsigned char byte : digest) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// From `openssl mac -macopt size:16 ... SIPHASH`.
TEST(SipHash, EqualsTheReference) {
  EXPECT_EQ(ReferenceHash(0), "A3817F04BA25A8E66DF67214C7550293");
  EXPECT_EQ(ReferenceHash(1), "DA87C1D86B99AF44347659119B22FC45");
  EXPECT_EQ(ReferenceHash(7), "A1F1EBBED8DBC153C0B84AA61FF08239");
  EXPECT_EQ(ReferenceHash(8), "3B62A9BA6258F5610F83E264F31497B4");
  EXPECT_EQ(ReferenceHash(15), "5493E99933B0A8117E08EC0F97CFC3D9");
  EXPECT_EQ(ReferenceHash(16), "6EE2A4CA67B054BBFD3315BF85230577");
  EXPECT_EQ(ReferenceHash(144), "6167DFCB3A52852F77F168C65452FE5A");
}

std::vector<Hash128> Keys(const PrefixHasher& hasher,
                          const std::vector<std::int32_t>& tokens,
                          std::string_view salt) {
  std::vector<Hash128> keys;
  hasher.Extend(tokens, salt, &keys);
  return keys;
}

TEST(PrefixHasher, KeysStandForAllTokensBefore) {
  const PrefixHasher hasher({1, 2}, 4);
  std::vector<std::int32_t> tokens(15);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto keys = Keys(hasher, tokens, "a");
  ASSERT_EQ(keys.size(), 3U);  // full blocks only
  tokens[5] = 99;
  const auto other = Keys(hasher, tokens, "a");
  EXPECT_EQ(other[0], keys[0]);
  EXPECT_NE(other[1], keys[1]);
  EXPECT_NE(other[2], keys[2]);
}

TEST(PrefixHasher, ExtendingEqualsHashingAtOnce) {
  const PrefixHasher hasher({1, 2}, 3);
  std::vector<std::int32_t> tokens(12, 7);
  std::vector<Hash128> keys;
  hasher.Extend(std::span(tokens).first(4), "salt", &keys);
  EXPECT_EQ(keys.size(), 1U);
  hasher.Extend(std::span(tokens).first(5), "salt", &keys);
  EXPECT_EQ(keys.size(), 1U);
  hasher.Extend(tokens, "salt", &keys);
  EXPECT_EQ(keys, Keys(hasher, tokens, "salt"));
}

TEST(PrefixHasher, SaltAndSecretSeparate) {
  const std::vector<std::int32_t> tokens(8, 1);
  const PrefixHasher hasher({1, 2}, 8);
  const auto key = Keys(hasher, tokens, "tenant-a");
  EXPECT_EQ(key, Keys(hasher, tokens, "tenant-a"));
  EXPECT_NE(key, Keys(hasher, tokens, "tenant-b"));
  EXPECT_NE(key, Keys(hasher, tokens, std::string_view("tenant-a\0", 9)));
  EXPECT_NE(key, Keys(hasher, tokens, ""));
  EXPECT_NE(key, Keys(PrefixHasher({1, 3}, 8), tokens, "tenant-a"));
  EXPECT_NE(Keys(PrefixHasher::Random(8), tokens, ""), Keys(PrefixHasher::Random(8), tokens, ""));
}

}  // namespace
}  // namespace inferd::engine
