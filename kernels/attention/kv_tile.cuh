// SPDX-License-Identifier: Apache-2.0
// Tokens of a KV page on their way through shared memory, and what the kernels that split the
// context do with the splits' results.
#pragma once

#include "kernels/attention/kv_values.cuh"

namespace inferd::kernels::cuda {

inline constexpr float kLog2e = 1.4426950408889634F;

// Bytes between two tokens of a tile: the bank of a lane's 16 bytes must differ from its
// neighbour's.
template <class Kv>
__host__ __device__ constexpr int TilePitch(int head_dim) {
  const int bytes = head_dim * static_cast<int>(sizeof(typename Kv::Value));
  return (bytes + 15) / 16 * 16 + 16;
}

// tile [32 tokens, pitch] = the values of 32 tokens of a page; tokens from `valid` on become zero,
// so that what was never written cannot turn a sum into NaN.
template <class Kv>
DEVICE void LoadTile(std::byte* tile,
                     const typename Kv::Value* from,
                     int head_dim,
                     int valid,
                     int thread,
                     int threads) {
  const int pitch = TilePitch<Kv>(head_dim);
  const int bytes = head_dim * static_cast<int>(sizeof(typename Kv::Value));
  const auto* in = reinterpret_cast<const std::byte*>(from);
  if (bytes % 16 == 0) {
    const int pieces = bytes / 16;
#pragma unroll 4
    for (int i = thread; i < kCudaPageTokens * pieces; i += threads) {
      const int token = i / pieces;
      const int at = i % pieces * 16;
      const bool ok = token < valid;
      CopyAsync16(tile + token * pitch + at, in + (ok ? token * bytes + at : 0), ok);
    }
  } else {
#pragma unroll 1
    for (int i = thread; i < kCudaPageTokens * head_dim; i += threads) {
      const int token = i / head_dim;
      auto* to = reinterpret_cast<typename Kv::Value*>(tile + token * pitch) + i % head_dim;
      *to = token < valid ? from[i] : typename Kv::Value{};
    }
  }
}

/// y = a row's splits joined, and the sink. Per (row, head) the workspace holds max_splits times
/// [dim sums of p v, max of the scores in base 2, sum of p].
struct JoinArgs {
  const std::int32_t* position = nullptr;  // [rows]
  std::int64_t rows = 0;
  int heads = 0;
  int dim = 0;  // of y's heads
  int window = 0;
  const float* sinks = nullptr;  // [heads] or null
  const float* workspace = nullptr;
  int max_splits = 0;
  float* y = nullptr;  // [rows, heads, dim], rows ldy apart
  std::int64_t ldy = 0;
};
Status JoinSplits(const JoinArgs& args, Stream stream);

}  // namespace inferd::kernels::cuda
