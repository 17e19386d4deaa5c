// SPDX-License-Identifier: Apache-2.0
// Attention of single rows over a latent cache: y = sum over seen tokens t of softmax(scale q.c[t])
// c[t][0..kv_rank), for all heads over the same c. A block takes one row, 16 of its query heads and
// one split of kSplitTokens; it leaves (sum p c, max, sum p) per head in the workspace, and
// JoinSplits joins a row's splits in ascending order. Splits begin at fixed positions, tokens go
// page by page, so the bits depend on the row alone. Bytes: every token of the context once per 16
// heads, of which all but the first pass come from the second-level cache; 2 (dim + kv_rank) flops
// per token and head.
//
// A warp has two heads. For the scores a lane has one token, for the values a strip of kv_rank;
// what it reads of the page it uses for both heads. While a page is worked on the next one is
// copied, but for F32, where two pages are more than shared memory holds.
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/kv_tile.cuh"
#include "kernels/attention/latent_cuda.h"
#include "kernels/cuda/reduce.cuh"

namespace inferd::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kHeads = 2;  // of a warp
constexpr int kBlockHeads = kWarps * kHeads;
constexpr int kSplitPages = kSplitTokens / kCudaPageTokens;
constexpr int kMaxDim = 640;

template <class Kv>
constexpr int kBuffers = sizeof(typename Kv::Value) == 4 ? 1 : 2;

// q.c of the warp's heads for one token's row of the tile.
template <class Kv>
DEVICE void Dots(const std::byte* row, const float* q, int dim, float (&sums)[kHeads]) {
  using Value = typename Kv::Value;
  constexpr int kRun = 16 / static_cast<int>(sizeof(Value));
  [[maybe_unused]] constexpr int kRuns =
      kRun > 8 ? 1 : 2;  // more bytes widened at once do not fit the registers
  struct alignas(16) Run {
    Value values[kRun];
  };
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    sums[h] = 0;
  }
  int i = 0;
#pragma unroll kRuns
  for (; i + kRun <= dim; i += kRun) {
    const Run run = *reinterpret_cast<const Run*>(row + i * static_cast<int>(sizeof(Value)));
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const float value = Kv::Get(run.values[j]);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        sums[h] = fmaf(q[h * dim + i + j], value, sums[h]);
      }
    }
  }
  for (; i < dim; ++i) {
    const float value = Kv::Get(reinterpret_cast<const Value*>(row)[i]);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      sums[h] = fmaf(q[h * dim + i], value, sums[h]);
    }
  }
}

// The running softmax of the warp's heads; lane l has the values l, l + 32, ... of the sums.
template <int kStrips>
struct Running {
  float top[kHeads];
  float sum[kHeads];
  float value[kHeads][kStrips];

  DEVICE void Clear() {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      top[h] = -INFINITY;
      sum[h] = 0;
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        value[h][s] = 0;
      }
    }
  }

  // Adds 32 tokens, this lane's with `score` (base 2; -INFINITY: not seen) and `scale` on its
  // values.
  template <class Kv>
  DEVICE void Add(
      const float (&score)[kHeads], float scale, const std::byte* tile, int pitch, int kv_rank) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float weighted[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float next = fmaxf(top[h], WarpMax(score[h]));
      const float shrink = next == -INFINITY ? 1.0F : exp2f(top[h] - next);
      const float p = next == -INFINITY ? 0.0F : exp2f(score[h] - next);
      top[h] = next;
      sum[h] = sum[h] * shrink + WarpSum(p);
      weighted[h] = p * scale;
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        value[h][s] *= shrink;
      }
    }
    [[maybe_unused]] constexpr int kTokens = sizeof(typename Kv::Value) == 1 ? 1 : 2;  // as kRuns
#pragma unroll kTokens
    for (int token = 0; token < kCudaPageTokens; ++token) {
      float w[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        w[h] = __shfl_sync(kFullMask, weighted[h], token);
      }
      const auto* v = reinterpret_cast<const typename Kv::Value*>(tile + token * pitch);
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        const int i = s * 32 + lane;
        if (i < kv_rank) {
          const float x = Kv::Get(v[i]);
#pragma unroll
          for (int h = 0; h < kHeads; ++h) {
            value[h][s] = fmaf(w[h], x, value[h][s]);
          }
        }
      }
    }
  }
};

template <class Kv>
DEVICE const typename Kv::Value* PageValues(const LatentPages& kv, std::int64_t page) {
  return reinterpret_cast<const typename Kv::Value*>(kv.base + page * kv.page_bytes);
}

template <class Kv, int kStrips>
__global__ void __launch_bounds__(kThreads) LatentRowsKernel(LatentArgs args, int max_splits) {
  SHARED_DYNAMIC(std::byte, shared);
  const LatentPages& kv = args.kv;
  const int dim = kv.kv_rank + kv.rope_dim;
  const int pitch = TilePitch<Kv>(dim);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = blockIdx.z;
  const int split = static_cast<int>(blockIdx.x);
  const int head0 = static_cast<int>(blockIdx.y) * kBlockHeads;
  const int heads = min(kBlockHeads, args.heads - head0);
  const int end = args.step.position[row] + 1;
  const int last = min(end, (split + 1) * kSplitTokens);
  const int first = split * kSplitTokens;
  if (first >= last) {
    return;
  }
  float* q_tile = reinterpret_cast<float*>(shared);
  std::byte* tiles = shared + kBlockHeads * dim * 4;
  const int tile_bytes = kCudaPageTokens * pitch;
  const std::int32_t* pages =
      args.step.pages + static_cast<std::int64_t>(args.step.sequence[row]) * args.step.max_pages;
  // Heads past the last are zeros, whose results are not stored.
  for (int i = static_cast<int>(threadIdx.x); i < kBlockHeads * dim; i += kThreads) {
    q_tile[i] = i < heads * dim ? args.q[row * args.ldq + head0 * dim + i] : 0.0F;
  }
  const auto load = [&](int page, int buffer) {
    LoadTile<Kv>(tiles + buffer * tile_bytes,
                 PageValues<Kv>(kv, pages[page]),
                 dim,
                 last - page * kCudaPageTokens,
                 static_cast<int>(threadIdx.x),
                 kThreads);
    CopyCommit();
  };
  const int page0 = split * kSplitPages;
  const int num_pages = (last - first + kCudaPageTokens - 1) / kCudaPageTokens;
  const float unit = args.scale * kLog2e * (std::is_same_v<Kv, KvF8> ? kv.scale : 1.0F);
  Running<kStrips> running;
  running.Clear();
  load(page0, 0);
#pragma unroll 1
  for (int p = 0; p < num_pages; ++p) {
    const int buffer = kBuffers<Kv> == 2 ? p % 2 : 0;
    if (kBuffers<Kv> == 2 && p + 1 < num_pages) {
      load(page0 + p + 1, 1 - buffer);
      CopyWait<1>();
    } else {
      CopyWait<0>();
    }
    __syncthreads();
    const std::byte* tile = tiles + buffer * tile_bytes;
    const int token = (page0 + p) * kCudaPageTokens + lane;
    float scale = std::is_same_v<Kv, KvF8> ? kv.scale : 1.0F;
    float score[kHeads];
    Dots<Kv>(tile + lane * pitch, q_tile + warp * kHeads * dim, dim, score);
    float token_unit = unit;
    if (Kv::kTokenScales && token < last) {
      scale = reinterpret_cast<const float*>(PageValues<Kv>(kv, pages[page0 + p]) +
                                             kCudaPageTokens * dim)[lane];
      token_unit *= scale;
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      score[h] = token < last ? score[h] * token_unit : -INFINITY;
    }
    running.template Add<Kv>(score, scale, tile, pitch, kv.kv_rank);
    __syncthreads();
    if (kBuffers<Kv> == 1 && p + 1 < num_pages) {
      load(page0 + p + 1, 0);
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const int head = warp * kHeads + h;
    if (head >= heads) {
      continue;
    }
    float* out = args.workspace + ((row * args.heads + head0 + head) * max_splits + split) *
                                      static_cast<std::int64_t>(kv.kv_rank + 2);
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      if (s * 32 + lane < kv.kv_rank) {
        out[s * 32 + lane] = running.value[h][s];
      }
    }
    if (lane == 0) {
      out[kv.kv_rank] = running.top[h];
      out[kv.kv_rank + 1] = running.sum[h];
    }
  }
}

template <class Kv, int kStrips>
Status Launch(const LatentArgs& args, Stream stream) {
  const int dim = args.kv.dim();
  const std::size_t bytes =
      static_cast<std::size_t>(kBlockHeads * dim) * sizeof(float) +
      static_cast<std::size_t>(kBuffers<Kv> * kCudaPageTokens * TilePitch<Kv>(dim));
  const auto kernel = &LatentRowsKernel<Kv, kStrips>;
  if (const Status status = AllowShared(kernel, bytes); status != Status::kOk) {
    return status;
  }
  const auto splits = static_cast<int>((args.max_tokens + kSplitTokens - 1) / kSplitTokens);
  const dim3 grid(static_cast<unsigned>(splits),
                  static_cast<unsigned>((args.heads + kBlockHeads - 1) / kBlockHeads),
                  static_cast<unsigned>(args.step.rows));
  const Status status = LAUNCH_KERNEL(kernel, grid, dim3(kThreads), bytes, stream, args, splits);
  if (status != Status::kOk) {
    return status;
  }
  return JoinSplits({args.step.position,
                     args.step.rows,
                     args.heads,
                     args.kv.kv_rank,
                     0,
                     nullptr,
                     args.workspace,
                     splits,
                     args.y,
                     args.ldy},
                    stream);
}

}  // namespace

Status LatentRows(const LatentArgs& args, Stream stream) {
  if (args.step.rows == 0) {
    return Status::kOk;
  }
  if (args.kv.kv_rank < 1 || args.kv.kv_rank > 512 || args.kv.rope_dim < 0 ||
      args.kv.dim() > kMaxDim || args.heads < 1 || args.max_tokens <= 0 || args.step.rows > 65535) {
    return Status::kInvalidValue;
  }
  return WithKvFormat(args.kv.format, [&](auto kv) {
    using Kv = decltype(kv);
    return args.kv.kv_rank <= 256 ? Launch<Kv, 8>(args, stream) : Launch<Kv, 16>(args, stream);
  });
}

}  // namespace inferd::kernels::cuda
