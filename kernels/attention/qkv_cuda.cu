// SPDX-License-Identifier: Apache-2.0
// One warp per (row, head) of q, k and v: RMS norm of the head, rotation, store. For int8 pages q
// and k are spread, which changes no product of theirs. The head lies in shared memory between the
// passes. Bytes: q read and written, k and v read, K and V written.
#include "kernels/attention/kv_values.cuh"
#include "kernels/attention/qkv_cuda.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/kernels.h"

namespace inferd::kernels::cuda {
namespace {

constexpr int kWarps = 4;

// head[0..dim) = norm of head, read and written by the whole warp.
DEVICE void NormHead(float* head, const float* weight, float eps, int dim) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float squares = 0;
  for (int i = lane; i < dim; i += 32) {
    squares = fmaf(head[i], head[i], squares);
  }
  const float inverse = 1.0F / sqrtf(WarpSum(squares) / static_cast<float>(dim) + eps);
  for (int i = lane; i < dim; i += 32) {
    head[i] = head[i] * inverse * weight[i];
  }
}

DEVICE void RotateHead(float* head, const QkvPostArgs& args, std::int64_t position) {
  const int half = args.rotary_dim / 2;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < half; i += 32) {
    const float cosine = args.cos[position * half + i];
    const float sine = args.sin[position * half + i];
    const int first = args.interleaved ? 2 * i : i;
    const int second = args.interleaved ? 2 * i + 1 : i + half;
    const float a = head[first];
    const float b = head[second];
    head[first] = a * cosine - b * sine;
    head[second] = b * cosine + a * sine;
  }
}

// Runs of dim & -dim values times the orthonormal Hadamard matrix, as kernels::SpreadHead.
DEVICE void SpreadHead(float* head, int dim) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int run = dim & -dim;
  for (int half = 1; half < run; half *= 2) {
    for (int i = lane; i < dim / 2; i += 32) {
      const int first = (i & ~(half - 1)) * 2 + (i & (half - 1));
      const float a = head[first];
      const float b = head[first + half];
      head[first] = a + b;
      head[first + half] = a - b;
    }
    __syncwarp();
  }
  const float unit = 1.0F / sqrtf(static_cast<float>(run));
  for (int i = lane; i < dim; i += 32) {
    head[i] *= unit;
  }
}

// Stores one token's K (which = 0) or V (1) of one head.
template <class Kv>
DEVICE void StoreHead(
    const float* head, const KvPages& kv, std::int64_t page, int slot, int kv_head, int which) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float inverse = 1.0F / (which == 0 ? kv.k_scale : kv.v_scale);
  if (Kv::kTokenScales) {
    float top = 0;
    for (int i = lane; i < kv.head_dim; i += 32) {
      top = fmaxf(top, fabsf(head[i]));
    }
    top = WarpMax(top);
    inverse = top > 0 ? 127.0F / top : 0.0F;
    if (lane == 0) {
      KvScales<Kv>(kv, page, kv_head)[which * kCudaPageTokens + slot] = top / 127.0F;
    }
  }
  auto* to = KvHead<Kv>(kv, page, kv_head) + (which * kCudaPageTokens + slot) * kv.head_dim;
  for (int i = lane; i < kv.head_dim; i += 32) {
    to[i] = Kv::Put(head[i], inverse);
  }
}

template <class Kv>
__global__ void __launch_bounds__(kWarps * 32) QkvPostKernel(QkvPostArgs args) {
  SHARED_ARRAY(float, heads, kWarps* kMaxHeadDim);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int index = static_cast<int>(blockIdx.y) * kWarps + warp;
  const std::int64_t row = blockIdx.x;
  const std::int64_t position = args.step.position[row];
  const int dim = args.kv.head_dim;
  const int kv_heads = args.kv.kv_heads;
  if (index >= args.q_heads + 2 * kv_heads || position < 0) {
    return;
  }
  const bool is_q = index < args.q_heads;
  const bool is_k = !is_q && index < args.q_heads + kv_heads;
  const int kv_head = is_k ? index - args.q_heads : index - args.q_heads - kv_heads;
  const float* from = is_q   ? args.q + row * args.ldq + index * dim
                      : is_k ? args.k + row * args.ldk + kv_head * dim
                             : args.v + row * args.ldv + kv_head * dim;
  float* head = heads + warp * kMaxHeadDim;
  for (int i = lane; i < dim; i += 32) {
    head[i] = from[i];
  }
  if (is_q || is_k) {
    const float* weight = is_q ? args.q_norm : args.k_norm;
    __syncwarp();
    if (weight != nullptr) {
      NormHead(head, weight, args.norm_eps, dim);
      __syncwarp();
    }
    RotateHead(head, args, position);
    if (Kv::kTokenScales) {
      __syncwarp();
      SpreadHead(head, dim);
    }
  }
  __syncwarp();
  if (is_q) {
    float* to = args.q + row * args.ldq + index * dim;
    for (int i = lane; i < dim; i += 32) {
      to[i] = head[i];
    }
    return;
  }
  const std::int64_t sequence = args.step.sequence[row];
  const std::int64_t page =
      args.step.pages[sequence * args.step.max_pages + position / kCudaPageTokens];
  StoreHead<Kv>(
      head, args.kv, page, static_cast<int>(position % kCudaPageTokens), kv_head, is_k ? 0 : 1);
}

}  // namespace

Status QkvPost(const QkvPostArgs& args, Stream stream) {
  if (args.step.rows == 0) {
    return Status::kOk;
  }
  if (args.kv.head_dim > kMaxHeadDim || args.rotary_dim > args.kv.head_dim) {
    return Status::kInvalidValue;
  }
  const int heads = args.q_heads + 2 * args.kv.kv_heads;
  const dim3 grid(static_cast<unsigned>(args.step.rows),
                  static_cast<unsigned>((heads + kWarps - 1) / kWarps));
  return WithKvFormat(args.kv.format, [&](auto kv) {
    return LAUNCH_KERNEL(QkvPostKernel<decltype(kv)>, grid, dim3(kWarps * 32), 0, stream, args);
  });
}

}  // namespace inferd::kernels::cuda
