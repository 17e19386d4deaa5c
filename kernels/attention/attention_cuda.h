// SPDX-License-Identifier: Apache-2.0
// Paged attention on the device, two kernels behind one interface. The row kernel takes any row of
// any sequence and splits the context at fixed positions, so a row's bits depend on nothing but the
// row; it serves decode. The tile kernel (tensor cores) takes 64 query rows of one sequence at once
// and serves prefill; its rows differ from the row kernel's in the last bits.
#pragma once

#include "kernels/attention/kv_cuda.h"
#include "kernels/cuda/stream.h"

#include <cstddef>
#include <cstdint>

namespace inferd::kernels::cuda {

/// Tokens per split of the row kernel.
inline constexpr int kSplitTokens = 256;

struct AttentionArgs {
  const float* q = nullptr;  // [rows, q_heads, head_dim], rows ldq apart
  std::int64_t ldq = 0;
  int q_heads = 0;
  /// [kv_heads + 1]: KV head h serves the query heads [group_begin[h], group_begin[h + 1]).
  const std::int32_t* group_begin = nullptr;
  int max_group = 1;  // the largest group
  StepRows step;
  KvPages kv;
  float scale = 1;
  float softcap = 0;             // 0: none
  int window = 0;                // tokens seen including itself; 0: all
  const float* sinks = nullptr;  // [q_heads] or null
  float* y = nullptr;            // [rows, q_heads, head_dim], rows ldy apart
  std::int64_t ldy = 0;
  /// An upper bound of position + 1 over the rows; fixes the launch shape (CUDA graphs).
  std::int64_t max_tokens = 0;
  float* workspace = nullptr;  // AttentionWorkspaceBytes
};

/// For the row kernel.
std::size_t AttentionWorkspaceBytes(std::int64_t rows,
                                    std::int64_t q_heads,
                                    std::int64_t head_dim,
                                    std::int64_t max_tokens);

/// Any head_dim up to 512.
Status AttentionRows(const AttentionArgs& args, Stream stream);

/// True when the tile kernel has the shape: any format but F32, head_dim 64, 80, 96, 112, 128, 192
/// or 256.
bool HasAttentionTiles(const KvPages& kv);

/// Sequence s has the consecutive rows [row_begin[s], row_begin[s + 1]) at consecutive positions;
/// `row_begin` [sequences + 1] is device memory, max_rows the most rows of one sequence. No
/// workspace.
Status AttentionTiles(const AttentionArgs& args,
                      const std::int32_t* row_begin,
                      std::int64_t sequences,
                      std::int64_t max_rows,
                      Stream stream);

}  // namespace inferd::kernels::cuda
