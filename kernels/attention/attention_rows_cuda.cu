// SPDX-License-Identifier: Apache-2.0
// Attention of single rows: y = sum over seen tokens t of softmax(softcap(scale q.k[t]), sink)
// v[t]. A block takes one row, one KV head with 8 or 2 of its query heads at a time, and one
// split of kSplitTokens; it leaves (sum p v, max, sum p) per query head in the workspace, and a
// second kernel joins a row's splits in ascending order. Splits begin at fixed positions, tokens go
// page by page, so the bits depend on the row alone. Bytes: every K and V of the context once per
// pass over the heads, 2 * head_dim * value bytes a token; two flops per value and query head.
//
// The four warps are kTeams teams; a team takes every kTeams-th page of the split, and its warps
// share the heads. Within a warp a lane has one token for the scores and a strip of head_dim for
// the values.
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/kv_tile.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/kernels.h"

namespace inferd::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kHeadsPerWarp = 2;
constexpr int kSplitPages = kSplitTokens / kCudaPageTokens;

// K.q of one token's row of the tile.
template <class Kv>
DEVICE float Dot(const std::byte* row, const float* q, int head_dim) {
  constexpr int kRun = 16 / static_cast<int>(sizeof(typename Kv::Value));
  struct alignas(16) Run {
    typename Kv::Value values[kRun];
  };
  float sum = 0;
  int i = 0;
#pragma unroll 2
  for (; i + kRun <= head_dim; i += kRun) {
    const Run run =
        *reinterpret_cast<const Run*>(row + i * static_cast<int>(sizeof(typename Kv::Value)));
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      sum = fmaf(q[i + j], Kv::Get(run.values[j]), sum);
    }
  }
  for (; i < head_dim; ++i) {
    sum = fmaf(q[i], Kv::Get(reinterpret_cast<const typename Kv::Value*>(row)[i]), sum);
  }
  return sum;
}

// One query head's running softmax in one warp; lane l has the values l, l + 32, ... of the sum.
template <int kStrips>
struct Running {
  float top = -INFINITY;
  float sum = 0;
  float value[kStrips] = {};

  // Adds 32 tokens, this lane's with `score` (base 2), scale `v_scale` on its V.
  template <class Kv>
  DEVICE void Add(float score, float v_scale, const std::byte* v_tile, int head_dim) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float next = fmaxf(top, WarpMax(score));
    if (next == -INFINITY) {
      return;  // the same for all lanes
    }
    const float shrink = exp2f(top - next);
    const float p = exp2f(score - next);
    top = next;
    sum = sum * shrink + WarpSum(p);
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      value[s] *= shrink;
    }
    const float weighted = p * v_scale;
    const int pitch = TilePitch<Kv>(head_dim);
#pragma unroll 4
    for (int token = 0; token < kCudaPageTokens; ++token) {
      const float w = __shfl_sync(kFullMask, weighted, token);
      const auto* v = reinterpret_cast<const typename Kv::Value*>(v_tile + token * pitch);
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        const int i = s * 32 + lane;
        if (i < head_dim) {
          value[s] = fmaf(w, Kv::Get(v[i]), value[s]);
        }
      }
    }
  }
};

template <class Kv, int kTeams, int kStrips>
__global__ void __launch_bounds__(kThreads, 2)
    AttentionRowsKernel(AttentionArgs args, int max_splits) {
  constexpr int kTeamWarps = kWarps / kTeams;
  constexpr int kBlockHeads = kHeadsPerWarp * kTeamWarps;
  SHARED_DYNAMIC(std::byte, shared);
  const KvPages& kv = args.kv;
  const int dim = kv.head_dim;
  const int pitch = TilePitch<Kv>(dim);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int team = warp / kTeamWarps;
  const std::int64_t row = blockIdx.z;
  const int split = static_cast<int>(blockIdx.x);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int end = args.step.position[row] + 1;
  const int begin = args.window > 0 ? max(0, end - args.window) : 0;
  const int last = min(end, (split + 1) * kSplitTokens);
  const int first = max(begin, split * kSplitTokens);
  if (first >= last) {
    return;
  }
  float* q_tile = reinterpret_cast<float*>(shared);
  std::byte* k_tile = shared + kBlockHeads * dim * 4 + team * 2 * kCudaPageTokens * pitch;
  std::byte* v_tile = k_tile + kCudaPageTokens * pitch;
  const std::int32_t* pages =
      args.step.pages + static_cast<std::int64_t>(args.step.sequence[row]) * args.step.max_pages;
  const int group_end = args.group_begin[kv_head + 1];
  const float unit = args.scale * (std::is_same_v<Kv, KvF8> ? kv.k_scale : 1.0F);

#pragma unroll 1
  for (int head0 = args.group_begin[kv_head]; head0 < group_end; head0 += kBlockHeads) {
    const int heads = min(kBlockHeads, group_end - head0);
    for (int i = static_cast<int>(threadIdx.x); i < heads * dim; i += kThreads) {
      q_tile[i] = args.q[row * args.ldq + head0 * dim + i];
    }
    __syncthreads();
    Running<kStrips> running[kHeadsPerWarp];
    const int page0 = split * kSplitPages;
#pragma unroll 1
    for (int p = page0; p < page0 + kSplitPages; p += kTeams) {
      const int token0 = (p + team) * kCudaPageTokens;
      const bool seen = token0 < last && token0 + kCudaPageTokens > first;
      const std::int64_t page = seen ? pages[p + team] : 0;
      const int thread = static_cast<int>(threadIdx.x) % (kTeamWarps * 32);
      if (seen) {
        const auto* k = KvHead<Kv>(kv, page, kv_head);
        LoadTile<Kv>(k_tile, k, dim, last - token0, thread, kTeamWarps * 32);
        CopyCommit();
        LoadTile<Kv>(
            v_tile, k + kCudaPageTokens * dim, dim, last - token0, thread, kTeamWarps * 32);
      }
      CopyCommit();
      CopyWait<1>();
      __syncthreads();
      float score[kHeadsPerWarp];
      float v_scale = std::is_same_v<Kv, KvF8> ? kv.v_scale : 1.0F;
      const int token = token0 + lane;
      const bool visible = seen && token >= first && token < last;
#pragma unroll
      for (int h = 0; h < kHeadsPerWarp; ++h) {
        const int head = warp % kTeamWarps + h * kTeamWarps;
        score[h] = -INFINITY;
        if (visible && head < heads) {
          float s = Dot<Kv>(k_tile + lane * pitch, q_tile + head * dim, dim) * unit;
          if (Kv::kTokenScales) {
            const float* scales = KvScales<Kv>(kv, page, kv_head);
            s *= scales[lane];
            v_scale = scales[kCudaPageTokens + lane];
          }
          s = args.softcap > 0 ? args.softcap * tanhf(s / args.softcap) : s;
          score[h] = s * kLog2e;
        }
      }
      CopyWait<0>();
      __syncthreads();
#pragma unroll
      for (int h = 0; h < kHeadsPerWarp; ++h) {
        if (seen && warp % kTeamWarps + h * kTeamWarps < heads) {
          running[h].template Add<Kv>(score[h], v_scale, v_tile, dim);
        }
      }
      __syncthreads();
    }
    // The teams' parts meet in shared memory, where the tiles were.
    float* part = reinterpret_cast<float*>(shared + kBlockHeads * dim * 4);
    const int part_pitch = dim + 2;
#pragma unroll
    for (int h = 0; h < kHeadsPerWarp; ++h) {
      const int head = warp % kTeamWarps + h * kTeamWarps;
      float* mine = part + (team * kBlockHeads + head) * part_pitch;
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        if (s * 32 + lane < dim) {
          mine[s * 32 + lane] = running[h].value[s];
        }
      }
      if (lane == 0) {
        mine[dim] = running[h].top;
        mine[dim + 1] = running[h].sum;
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < heads * dim; i += kThreads) {
      const int head = i / dim;
      float top = -INFINITY;
#pragma unroll
      for (int t = 0; t < kTeams; ++t) {
        top = fmaxf(top, part[(t * kBlockHeads + head) * part_pitch + dim]);
      }
      float sum = 0;
      float value = 0;
#pragma unroll
      for (int t = 0; t < kTeams; ++t) {
        const float* theirs = part + (t * kBlockHeads + head) * part_pitch;
        const float shrink = exp2f(theirs[dim] - top);
        sum += theirs[dim + 1] * shrink;
        value += theirs[i % dim] * shrink;
      }
      float* out = args.workspace + ((row * args.q_heads + head0 + head) * max_splits + split) *
                                        static_cast<std::int64_t>(dim + 2);
      out[i % dim] = value;
      if (i % dim == 0) {
        out[dim] = top;
        out[dim + 1] = sum;
      }
    }
    __syncthreads();
  }
}

// One block per (query head, row).
__global__ void __launch_bounds__(kThreads) JoinSplitsKernel(JoinArgs args) {
  const std::int64_t row = blockIdx.y;
  const int head = static_cast<int>(blockIdx.x);
  const int dim = args.dim;
  const int end = args.position[row] + 1;
  const int begin = args.window > 0 ? max(0, end - args.window) : 0;
  const float* part = args.workspace + (row * args.heads + head) * args.max_splits *
                                           static_cast<std::int64_t>(dim + 2);
  float* y = args.y + row * args.ldy + head * dim;
  const int first = begin / kSplitTokens;
  const int last = (end + kSplitTokens - 1) / kSplitTokens;
  const float sink = args.sinks != nullptr ? args.sinks[head] * kLog2e : -INFINITY;
  float top = sink;
  for (int s = first; s < last; ++s) {
    top = fmaxf(top, part[s * (dim + 2) + dim]);
  }
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads) {
    float sum = args.sinks != nullptr ? exp2f(sink - top) : 0.0F;
    float value = 0;
    for (int s = first; s < last; ++s) {
      const float shrink = exp2f(part[s * (dim + 2) + dim] - top);
      sum += part[s * (dim + 2) + dim + 1] * shrink;
      value += part[s * (dim + 2) + i] * shrink;
    }
    y[i] = end > 0 ? value / sum : 0.0F;
  }
}

int SplitsOf(std::int64_t max_tokens) {
  return static_cast<int>((max_tokens + kSplitTokens - 1) / kSplitTokens);
}

template <class Kv, int kTeams, int kStrips>
Status LaunchRows(const AttentionArgs& args, Stream stream) {
  constexpr int kTeamWarps = kWarps / kTeams;
  constexpr int kBlockHeads = kHeadsPerWarp * kTeamWarps;
  const int dim = args.kv.head_dim;
  const std::size_t tiles = static_cast<std::size_t>(kTeams) * 2 * kCudaPageTokens *
                            static_cast<std::size_t>(TilePitch<Kv>(dim));
  const std::size_t parts =
      static_cast<std::size_t>(kTeams) * kBlockHeads * static_cast<std::size_t>(dim + 2) * 4;
  const std::size_t bytes =
      static_cast<std::size_t>(kBlockHeads) * static_cast<std::size_t>(dim) * 4 +
      (tiles > parts ? tiles : parts);
  const auto kernel = &AttentionRowsKernel<Kv, kTeams, kStrips>;
  if (const Status status = AllowShared(kernel, bytes); status != Status::kOk) {
    return status;
  }
  const int splits = SplitsOf(args.max_tokens);
  const dim3 grid(static_cast<unsigned>(splits),
                  static_cast<unsigned>(args.kv.kv_heads),
                  static_cast<unsigned>(args.step.rows));
  const Status status = LAUNCH_KERNEL(kernel, grid, dim3(kThreads), bytes, stream, args, splits);
  if (status != Status::kOk) {
    return status;
  }
  return JoinSplits({args.step.position,
                     args.step.rows,
                     args.q_heads,
                     dim,
                     args.window,
                     args.sinks,
                     args.workspace,
                     splits,
                     args.y,
                     args.ldy},
                    stream);
}

template <class Kv, int kTeams>
Status LaunchStrips(const AttentionArgs& args, Stream stream) {
  const int strips = (args.kv.head_dim + 31) / 32;
  if (strips <= 2) {
    return LaunchRows<Kv, kTeams, 2>(args, stream);
  }
  if (strips <= 4) {
    return LaunchRows<Kv, kTeams, 4>(args, stream);
  }
  if (strips <= 8) {
    return LaunchRows<Kv, kTeams, 8>(args, stream);
  }
  return LaunchRows<Kv, 1, 16>(args, stream);
}

}  // namespace

std::size_t AttentionWorkspaceBytes(std::int64_t rows,
                                    std::int64_t q_heads,
                                    std::int64_t head_dim,
                                    std::int64_t max_tokens) {
  return static_cast<std::size_t>(rows * q_heads * SplitsOf(max_tokens) * (head_dim + 2)) *
         sizeof(float);
}

Status JoinSplits(const JoinArgs& args, Stream stream) {
  return LAUNCH_KERNEL(JoinSplitsKernel,
                       dim3(static_cast<unsigned>(args.heads), static_cast<unsigned>(args.rows)),
                       dim3(kThreads),
                       0,
                       stream,
                       args);
}

Status AttentionRows(const AttentionArgs& args, Stream stream) {
  if (args.step.rows == 0) {
    return Status::kOk;
  }
  if (args.kv.head_dim > kMaxHeadDim || args.max_tokens <= 0 || args.step.rows > 65535) {
    return Status::kInvalidValue;
  }
  return WithKvFormat(args.kv.format, [&](auto kv) {
    using Kv = decltype(kv);
    // Small groups leave warps idle that can take pages of their own. Those of F32
    // would fill the shared memory.
    if constexpr (sizeof(typename Kv::Value) <= 2) {
      if (args.max_group <= 2) {
        return LaunchStrips<Kv, 4>(args, stream);
      }
    }
    return LaunchStrips<Kv, 1>(args, stream);
  });
}

}  // namespace inferd::kernels::cuda
