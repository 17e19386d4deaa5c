// SPDX-License-Identifier: Apache-2.0
// What follows the QKV product on the device: head norms, rotation, storing K and V.
#pragma once

#include "kernels/attention/kv_cuda.h"
#include "kernels/cuda/stream.h"

#include <cstdint>

namespace inferd::kernels::cuda {

/// For every row: q and k heads are RMS-normed where weights are given, their first rotary_dim
/// values are rotated, q is written back and k and v are stored in the pages; for int8 q and k go
/// through SpreadHead of kv_page.h first.
struct QkvPostArgs {
  float* q = nullptr;  // [rows, q_heads, head_dim], rows ldq apart
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t ldq = 0, ldk = 0, ldv = 0;
  int q_heads = 0;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
  float norm_eps = 0;
  const float* cos = nullptr;  // [positions, rotary_dim / 2]
  const float* sin = nullptr;
  int rotary_dim = 0;        // 0: no rotation
  bool interleaved = false;  // pairs (2i, 2i+1); else (i, i + rotary_dim / 2)
  StepRows step;
  KvPages kv;
};
Status QkvPost(const QkvPostArgs& args, Stream stream);

}  // namespace inferd::kernels::cuda
