// SPDX-License-Identifier: Apache-2.0
#include "engine/prefix_hasher.h"

#include "engine/siphash.h"

#include <cstddef>
#include <cstring>
#include <random>

namespace inferd::engine {
namespace {

// One round less than the usual 2-4 in each part: still a keyed function without known attacks, and
// a hit compares the tokens anyway.
using BlockHash = SipHash128<1, 3>;

Hash128 RootKey(Hash128 secret, std::string_view salt) {
  BlockHash hash(secret);
  while (salt.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, salt.data(), 8);
    hash.Add(word);
    salt.remove_prefix(8);
  }
  std::uint64_t tail = 0;
  if (!salt.empty()) {
    std::memcpy(&tail, salt.data(), salt.size());
  }
  return hash.Finish(tail, salt.size());
}

Hash128 BlockKey(Hash128 secret, Hash128 parent, std::span<const std::int32_t> tokens) {
  BlockHash hash(secret);
  hash.Add(parent.low);
  hash.Add(parent.high);
  std::size_t i = 0;
  for (; i + 2 <= tokens.size(); i += 2) {
    std::uint64_t word = 0;
    std::memcpy(&word, tokens.data() + i, 8);
    hash.Add(word);
  }
  if (i < tokens.size()) {
    return hash.Finish(static_cast<std::uint32_t>(tokens[i]), 4);
  }
  return hash.Finish();
}

}  // namespace

PrefixHasher PrefixHasher::Random(std::int32_t page_size) {
  std::random_device device;
  const auto word = [&device] { return (static_cast<std::uint64_t>(device()) << 32) | device(); };
  Hash128 secret;
  secret.low = word();
  secret.high = word();
  return {secret, page_size};
}

PrefixHasher PrefixHasher::Stable(std::int32_t page_size) {
  return {Hash128{0x6b762d6576656e74ULL, 0x696e666572642d31ULL}, page_size};
}

void PrefixHasher::Extend(std::span<const std::int32_t> tokens,
                          std::string_view salt,
                          std::vector<Hash128>* keys) const {
  const auto page = static_cast<std::size_t>(page_size_);
  const std::size_t num_full = tokens.size() / page;
  if (keys->size() >= num_full) {
    return;
  }
  Hash128 parent = keys->empty() ? RootKey(secret_, salt) : keys->back();
  for (std::size_t block = keys->size(); block < num_full; ++block) {
    parent = BlockKey(secret_, parent, tokens.subspan(block * page, page));
    keys->push_back(parent);
  }
}

}  // namespace inferd::engine
