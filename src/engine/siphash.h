// SPDX-License-Identifier: Apache-2.0
// SipHash with 128-bit output over whole 64-bit words; private to the engine.
// Formula: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012), with the 128-bit
// finish of its reference.
#pragma once

#include "engine/prefix_hasher.h"

#include <bit>
#include <cstdint>

namespace inferd::engine {

/// kC compression and kD finishing rounds a word. Feed words with Add(), then call Finish() once.
template <int kC, int kD>
class SipHash128 {
 public:
  explicit SipHash128(Hash128 key)
      : v0_(0x736f6d6570736575ULL ^ key.low),
        v1_(0x646f72616e646f6dULL ^ key.high ^ 0xee),
        v2_(0x6c7967656e657261ULL ^ key.low),
        v3_(0x7465646279746573ULL ^ key.high) {}

  void Add(std::uint64_t word) {
    v3_ ^= word;
    Rounds<kC>();
    v0_ ^= word;
    num_bytes_ += 8;
  }

  /// `tail`: the last 0 to 7 bytes of the message, little endian, `tail_bytes` of them.
  Hash128 Finish(std::uint64_t tail = 0, std::uint64_t tail_bytes = 0) {
    const std::uint64_t last = ((num_bytes_ + tail_bytes) << 56) | tail;
    v3_ ^= last;
    Rounds<kC>();
    v0_ ^= last;
    v2_ ^= 0xee;
    Rounds<kD>();
    Hash128 hash;
    hash.low = v0_ ^ v1_ ^ v2_ ^ v3_;
    v1_ ^= 0xdd;
    Rounds<kD>();
    hash.high = v0_ ^ v1_ ^ v2_ ^ v3_;
    return hash;
  }

 private:
  template <int kN>
  void Rounds() {
    for (int i = 0; i < kN; ++i) {
      v0_ += v1_;
      v1_ = std::rotl(v1_, 13) ^ v0_;
      v0_ = std::rotl(v0_, 32);
      v2_ += v3_;
      v3_ = std::rotl(v3_, 16) ^ v2_;
      v0_ += v3_;
      v3_ = std::rotl(v3_, 21) ^ v0_;
      v2_ += v1_;
      v1_ = std::rotl(v1_, 17) ^ v2_;
      v2_ = std::rotl(v2_, 32);
    }
  }

  std::uint64_t v0_, v1_, v2_, v3_;
  std::uint64_t num_bytes_ = 0;
};

}  // namespace inferd::engine
