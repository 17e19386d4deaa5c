// SPDX-License-Identifier: Apache-2.0
// Attention over a latent cache (MLA, arXiv 2405.04434) on the device. A token is one vector that
// all query heads share: the latent of kv_rank values, which is K and V, and a rotated key of
// rope_dim values after it. A page holds kCudaPageTokens tokens of one layer:
//
//   values  [token][kv_rank + rope_dim]
//   scales  [token] floats, int8 only: value = scale * q
#pragma once

#include "kernels/attention/kv_cuda.h"
#include "kernels/cuda/stream.h"

#include <cstddef>
#include <cstdint>

namespace inferd::kernels::cuda {

/// Bytes of one layer's share of a page, a multiple of 16 for dim = kv_rank + rope_dim, dim % 8 ==
/// 0.
constexpr std::size_t LatentBytesPerPage(KvFormat format, std::int64_t dim) {
  return kCudaPageTokens * static_cast<std::size_t>(dim) * KvValueBytes(format) +
         (format == KvFormat::kInt8 ? kCudaPageTokens * sizeof(float) : 0);
}

/// One layer's pages: page p begins at base + p * page_bytes.
struct LatentPages {
  std::byte* base = nullptr;
  std::int64_t page_bytes = 0;
  KvFormat format = KvFormat::kF16;
  int kv_rank = 0;   // at most 512
  int rope_dim = 0;  // even; kv_rank + rope_dim at most 640
  float scale = 1;   // of FP8 values

  constexpr int dim() const { return kv_rank + rope_dim; }
};

/// For every row: the latent is RMS-normed and stored with the rotated key; the rotated part of
/// each query head is written behind the part that is in the latent space already.
struct LatentPostArgs {
  const float* kv = nullptr;  // [rows, kv_rank + rope_dim], rows ldkv apart, as projected
  std::int64_t ldkv = 0;
  const float* norm = nullptr;  // [kv_rank]
  float norm_eps = 0;
  const float* q_rope = nullptr;  // [rows, heads, rope_dim], rows ldq_rope, heads q_rope_head apart
  std::int64_t ldq_rope = 0, q_rope_head = 0;
  int heads = 0;
  float* q = nullptr;  // [rows, heads, kv_rank + rope_dim], rows ldq apart; the last rope_dim
  std::int64_t ldq = 0;
  const float* cos = nullptr;  // [positions, rope_dim / 2]
  const float* sin = nullptr;
  bool interleaved = false;  // pairs (2i, 2i+1); else (i, i + rope_dim / 2)
  StepRows step;
  LatentPages kv_pages;
};
Status LatentPost(const LatentPostArgs& args, Stream stream);

struct LatentArgs {
  const float* q = nullptr;  // [rows, heads, kv_rank + rope_dim], rows ldq apart
  std::int64_t ldq = 0;
  int heads = 0;
  StepRows step;
  LatentPages kv;
  float scale = 1;
  float* y = nullptr;  // [rows, heads, kv_rank], rows ldy apart
  std::int64_t ldy = 0;
  /// An upper bound of position + 1 over the rows; fixes the launch shape (CUDA graphs).
  std::int64_t max_tokens = 0;
  float* workspace = nullptr;  // AttentionWorkspaceBytes with head_dim = kv_rank
};

/// Any rows of any sequences, as AttentionRows: the context is split at multiples of kSplitTokens,
/// so a row's bits depend on nothing but the row.
Status LatentRows(const LatentArgs& args, Stream stream);

}  // namespace inferd::kernels::cuda
