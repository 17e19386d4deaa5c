// SPDX-License-Identifier: Apache-2.0
// Keys of full blocks for the prefix cache and the router: a chain of keyed 128-bit hashes, so that
// a key stands for the block's tokens and for all tokens before it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace inferd::engine {

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

/// SipHash with a per-process random key: a client cannot aim for a collision, and a hit still
/// compares tokens. Immutable, hence safe to share between threads. All replicas of a server use
/// one hasher, so that keys made by the router serve the scheduler.
class PrefixHasher {
 public:
  PrefixHasher(Hash128 secret, std::int32_t page_size) : secret_(secret), page_size_(page_size) {}

  /// With a secret from the system's random source.
  static PrefixHasher Random(std::int32_t page_size);
  /// With a secret that is none: for names that mean the same in every process. Who knows it can
  /// make two blocks of one name; never look up contents by it.
  static PrefixHasher Stable(std::int32_t page_size);

  /// Appends to `keys` the keys of all full blocks of `tokens` that it does not hold yet. keys[i]
  /// must already belong to block i of the same tokens and salt.
  void Extend(std::span<const std::int32_t> tokens,
              std::string_view salt,
              std::vector<Hash128>* keys) const;

  std::int32_t page_size() const { return page_size_; }

 private:
  Hash128 secret_;
  std::int32_t page_size_;  // tokens per block
};

}  // namespace inferd::engine
