// SPDX-License-Identifier: Apache-2.0
// One warp per (row, query head), which rotates that head's key part, and one per row, which norms
// the latent, rotates the key and stores both. Bytes: the projected vectors read, q's rotated part
// written, one token stored.
#include "kernels/attention/kv_values.cuh"
#include "kernels/attention/latent_cuda.h"
#include "kernels/cuda/reduce.cuh"

namespace inferd::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxDim = 640;

DEVICE void RotateInto(const float* from,
                       const LatentPostArgs& args,
                       std::int64_t position,
                       float* to) {
  const int half = args.kv_pages.rope_dim / 2;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < half; i += 32) {
    const float cosine = args.cos[position * half + i];
    const float sine = args.sin[position * half + i];
    const int first = args.interleaved ? 2 * i : i;
    const int second = args.interleaved ? 2 * i + 1 : i + half;
    const float a = from[first];
    const float b = from[second];
    to[first] = a * cosine - b * sine;
    to[second] = b * cosine + a * sine;
  }
}

template <class Kv>
DEVICE void StoreToken(const float* token, const LatentPages& kv, std::int64_t page, int slot) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int dim = kv.dim();
  auto* values = reinterpret_cast<typename Kv::Value*>(kv.base + page * kv.page_bytes);
  float inverse = 1.0F / kv.scale;
  if (Kv::kTokenScales) {
    float top = 0;
    for (int i = lane; i < dim; i += 32) {
      top = fmaxf(top, fabsf(token[i]));
    }
    top = WarpMax(top);
    inverse = top > 0 ? 127.0F / top : 0.0F;
    if (lane == 0) {
      reinterpret_cast<float*>(values + kCudaPageTokens * dim)[slot] = top / 127.0F;
    }
  }
  for (int i = lane; i < dim; i += 32) {
    values[slot * dim + i] = Kv::Put(token[i], inverse);
  }
}

template <class Kv>
__global__ void __launch_bounds__(kWarps * 32) LatentPostKernel(LatentPostArgs args) {
  SHARED_ARRAY(float, tokens, kWarps* kMaxDim);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int index = static_cast<int>(blockIdx.y) * kWarps + warp;
  const std::int64_t row = blockIdx.x;
  const std::int64_t position = args.step.position[row];
  const LatentPages& kv = args.kv_pages;
  if (index > args.heads || position < 0) {
    return;
  }
  if (index < args.heads) {
    RotateInto(args.q_rope + row * args.ldq_rope + index * args.q_rope_head,
               args,
               position,
               args.q + row * args.ldq + index * kv.dim() + kv.kv_rank);
    return;
  }
  const float* from = args.kv + row * args.ldkv;
  float* token = tokens + warp * kMaxDim;
  float squares = 0;
  for (int i = lane; i < kv.kv_rank; i += 32) {
    squares = fmaf(from[i], from[i], squares);
  }
  const float inverse =
      1.0F / sqrtf(WarpSum(squares) / static_cast<float>(kv.kv_rank) + args.norm_eps);
  for (int i = lane; i < kv.kv_rank; i += 32) {
    token[i] = from[i] * inverse * args.norm[i];
  }
  RotateInto(from + kv.kv_rank, args, position, token + kv.kv_rank);
  __syncwarp();
  const std::int64_t page =
      args.step.pages[args.step.sequence[row] * static_cast<std::int64_t>(args.step.max_pages) +
                      position / kCudaPageTokens];
  StoreToken<Kv>(token, kv, page, static_cast<int>(position % kCudaPageTokens));
}

}  // namespace

Status LatentPost(const LatentPostArgs& args, Stream stream) {
  if (args.step.rows == 0) {
    return Status::kOk;
  }
  if (args.kv_pages.kv_rank < 1 || args.kv_pages.rope_dim < 0 || args.kv_pages.rope_dim % 2 != 0 ||
      args.kv_pages.dim() > kMaxDim) {
    return Status::kInvalidValue;
  }
  const dim3 grid(static_cast<unsigned>(args.step.rows),
                  static_cast<unsigned>((args.heads + 1 + kWarps - 1) / kWarps));
  return WithKvFormat(args.kv_pages.format, [&](auto kv) {
    return LAUNCH_KERNEL(LatentPostKernel<decltype(kv)>, grid, dim3(kWarps * 32), 0, stream, args);
  });
}

}  // namespace inferd::kernels::cuda
