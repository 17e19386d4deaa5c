// SPDX-License-Identifier: Apache-2.0
// Attention of 64 query rows of one sequence and one head per block, online softmax over pages of
// 32 tokens: S = Q K^T and O += P V on tensor cores, K and V double-buffered by cp.async. Q and P
// are multiplied as the sum of two halves (hi + lo), so that only the stored K and V are rounded.
// 8-bit K and V are widened in shared memory to bf16, which holds every one of them; the scales of
// int8's tokens multiply the columns of S and P.
// Bytes: K and V of the context once per 64 rows and query head; 2 * 2 * 2 * 64 flops per value
// read.
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/kv_values.cuh"

#include <type_traits>

namespace inferd::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 64;
constexpr int kTokens = kCudaPageTokens;
constexpr float kLog2e = 1.4426950408889634F;

// 16 bytes more than a row: the eight rows of an ldmatrix then lie in different banks.
constexpr int Pitch(int head_dim) { return head_dim + 8; }

template <class Kv>
constexpr bool kWidened = sizeof(typename Kv::Value) == 1;

/// What the tensor cores see of a format.
template <class Kv>
using Operand = std::conditional_t<kWidened<Kv>, KvBf16, Kv>;

// Q in two halves, then K and V: two buffers of them, or one and two buffers of stored bytes.
template <class Kv>
constexpr std::size_t SharedBytes(int head_dim) {
  constexpr int kTiles = kWidened<Kv> ? 2 : 4;
  const int stored = kWidened<Kv> ? 4 * kTokens * head_dim : 0;
  return static_cast<std::size_t>((2 * kRows + kTiles * kTokens) * Pitch(head_dim) * 2 + stored);
}

template <class Kv>
DEVICE std::uint32_t Pack(float low, float high) {
  return std::is_same_v<Kv, KvBf16> ? PackBf16(low, high) : PackHalf(low, high);
}

// The pair as hi + lo.
template <class Kv>
DEVICE void PackSplit(float low, float high, std::uint32_t* hi, std::uint32_t* lo) {
  *hi = Pack<Kv>(low, high);
  *lo = Pack<Kv>(low - Kv::Get(static_cast<std::uint16_t>(*hi)),
                 high - Kv::Get(static_cast<std::uint16_t>(*hi >> 16)));
}

template <class Kv>
DEVICE void Mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if (std::is_same_v<Kv, KvBf16>) {
    MmaBf16(d, a, b0, b1);
  } else {
    MmaHalf(d, a, b0, b1);
  }
}

// What one thread keeps of its two rows (lane / 4 and 8 more) of its warp's 16.
template <int kDim>
struct RowState {
  float top[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
  float out[kDim / 8][4] = {};
};

// Queues K and V of one page; tokens from `valid` on become zero.
template <class Kv, int kDim>
DEVICE void LoadPage(std::uint16_t* k_tile,
                     std::uint16_t* v_tile,
                     const std::uint16_t* head,
                     int valid) {
  constexpr int kPieces = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * kPieces; i += kThreads) {
    const int token = i / kPieces;
    const int at = i % kPieces * 8;
    const bool ok = token < valid;
    const std::uint16_t* from = head + (ok ? token * kDim + at : 0);
    CopyAsync16(k_tile + token * Pitch(kDim) + at, from, ok);
    CopyAsync16(v_tile + token * Pitch(kDim) + at, from + kTokens * kDim, ok);
  }
}

// The same of 8-bit values, to [K, V][token][kDim].
template <class Kv, int kDim>
DEVICE void LoadStored(typename Kv::Value* stored, const typename Kv::Value* head, int valid) {
  constexpr int kPieces = kDim / 16;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kTokens * kPieces; i += kThreads) {
    const int at = i * 16;
    const bool ok = i / kPieces % kTokens < valid;
    CopyAsync16(stored + at, head + (ok ? at : 0), ok);
  }
}

// tile [K, V][token][pitch] = the stored values as bf16.
template <class Kv, int kDim>
DEVICE void Widen(std::uint16_t* tile, const typename Kv::Value* stored) {
  struct alignas(8) Run {
    typename Kv::Value values[8];
  };
  struct alignas(16) Wide {
    std::uint32_t pairs[4];
  };
  constexpr int kRuns = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kTokens * kRuns; i += kThreads) {
    const Run run = reinterpret_cast<const Run*>(stored)[i];
    Wide wide;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      wide.pairs[j] = PackBf16(Kv::Get(run.values[2 * j]), Kv::Get(run.values[2 * j + 1]));
    }
    *reinterpret_cast<Wide*>(tile + i / kRuns * Pitch(kDim) + i % kRuns * 8) = wide;
  }
}

// Multiplies this thread's columns of S or P by the scales of their tokens; what lies behind
// `valid` was never written.
DEVICE void ScaleColumns(float (&s)[4][4], const float* scales, int valid) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int token = j * 8 + lane % 4 * 2 + c;
      const float scale = token < valid ? scales[token] : 0.0F;
      s[j][c] *= scale;
      s[j][2 + c] *= scale;
    }
  }
}

// s = Q K^T of this warp's 16 rows and the page's 32 tokens.
template <class Kv, int kDim>
DEVICE void Scores(float (&s)[4][4],
                   const std::uint16_t* q_hi,
                   const std::uint16_t* q_lo,
                   const std::uint16_t* k_tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int q_at = (warp * 16 + lane % 16) * Pitch(kDim) + lane / 16 * 8;
  const int k_at = (lane % 8 + lane / 16 * 8) * Pitch(kDim) + lane / 8 % 2 * 8;
  // The tail of seven steps by four would cost registers that sm_100 does not have.
  [[maybe_unused]] constexpr int kUnroll = kDim == 112 ? 2 : 4;
#pragma unroll kUnroll
  for (int k = 0; k < kDim; k += 16) {
    std::uint32_t hi[4];
    std::uint32_t lo[4];
    LoadMatrix(hi, q_hi + q_at + k);
    LoadMatrix(lo, q_lo + q_at + k);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      std::uint32_t b[4];
      LoadMatrix(b, k_tile + k_at + j * 16 * Pitch(kDim) + k);
      Mma<Kv>(s[2 * j], lo, b[0], b[1]);
      Mma<Kv>(s[2 * j], hi, b[0], b[1]);
      Mma<Kv>(s[2 * j + 1], lo, b[2], b[3]);
      Mma<Kv>(s[2 * j + 1], hi, b[2], b[3]);
    }
  }
}

// Scales and masks the scores, updates maximum and sum, turns s into p and rescales `out`.
template <int kDim>
DEVICE void Softmax(float (&s)[4][4],
                    RowState<kDim>* state,
                    const AttentionArgs& args,
                    float scale,
                    int position0,
                    int token0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = position0 + lane / 4 + r * 8;
    const int begin = args.window > 0 ? position - args.window + 1 : 0;
    float top = state->top[r];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int token = token0 + j * 8 + lane % 4 * 2 + c;
        float x = s[j][r * 2 + c] * scale;
        x = args.softcap > 0 ? args.softcap * tanhf(x / args.softcap) : x;
        x = token <= position && token >= begin ? x * kLog2e : -INFINITY;
        s[j][r * 2 + c] = x;
        top = fmaxf(top, x);
      }
    }
    top = fmaxf(top, __shfl_xor_sync(kFullMask, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kFullMask, top, 2));
    // With nothing seen yet the maximum is -inf; any finite number keeps the differences defined.
    const float base = top == -INFINITY ? 0.0F : top;
    const float shrink = exp2f(state->top[r] - base);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        s[j][r * 2 + c] = exp2f(s[j][r * 2 + c] - base);
        sum += s[j][r * 2 + c];
      }
    }
    sum += __shfl_xor_sync(kFullMask, sum, 1);
    sum += __shfl_xor_sync(kFullMask, sum, 2);
    state->top[r] = top;
    state->sum[r] = state->sum[r] * shrink + sum;
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) {
      state->out[d][r * 2] *= shrink;
      state->out[d][r * 2 + 1] *= shrink;
    }
  }
}

// out += P V.
template <class Kv, int kDim>
DEVICE void Accumulate(RowState<kDim>* state, const float (&p)[4][4], const std::uint16_t* v_tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int v_at = lane % 16 * Pitch(kDim) + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    std::uint32_t hi[4];
    std::uint32_t lo[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&pair)[4] = p[2 * k + i / 2];
      PackSplit<Kv>(pair[i % 2 * 2], pair[i % 2 * 2 + 1], &hi[i], &lo[i]);
    }
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      std::uint32_t b[4];
      LoadMatrixTransposed(b, v_tile + v_at + k * 16 * Pitch(kDim) + d * 16);
      Mma<Kv>(state->out[2 * d], lo, b[0], b[1]);
      Mma<Kv>(state->out[2 * d], hi, b[0], b[1]);
      Mma<Kv>(state->out[2 * d + 1], lo, b[2], b[3]);
      Mma<Kv>(state->out[2 * d + 1], hi, b[2], b[3]);
    }
  }
}

template <class Kv, int kDim>
DEVICE void LoadQuery(
    std::uint16_t* q_hi, std::uint16_t* q_lo, const float* q, std::int64_t ldq, int rows) {
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kDim / 2; i += kThreads) {
    const int row = i / (kDim / 2);
    const int at = i % (kDim / 2) * 2;
    const float limit = std::is_same_v<Kv, KvF16> ? 65504.0F : 3e38F;
    const float low = row < rows ? fminf(fmaxf(q[row * ldq + at], -limit), limit) : 0.0F;
    const float high = row < rows ? fminf(fmaxf(q[row * ldq + at + 1], -limit), limit) : 0.0F;
    std::uint32_t hi;
    std::uint32_t lo;
    PackSplit<Kv>(low, high, &hi, &lo);
    *reinterpret_cast<std::uint32_t*>(q_hi + row * Pitch(kDim) + at) = hi;
    *reinterpret_cast<std::uint32_t*>(q_lo + row * Pitch(kDim) + at) = lo;
  }
}

template <class Kv, int kDim>
__global__ void __launch_bounds__(kThreads)
    AttentionTilesKernel(AttentionArgs args, const std::int32_t* row_begin) {
  SHARED_DYNAMIC(std::uint16_t, shared);
  const int sequence = static_cast<int>(blockIdx.z);
  const int head = static_cast<int>(blockIdx.y);
  const int row0 = row_begin[sequence] + static_cast<int>(blockIdx.x) * kRows;
  const int rows = min(kRows, row_begin[sequence + 1] - row0);
  if (rows <= 0) {
    return;
  }
  int kv_head = 0;
  while (args.group_begin[kv_head + 1] <= head) {
    ++kv_head;
  }
  constexpr int kTile = kTokens * Pitch(kDim);
  std::uint16_t* q_hi = shared;
  std::uint16_t* q_lo = q_hi + kRows * Pitch(kDim);
  std::uint16_t* tiles = q_lo + kRows * Pitch(kDim);                        // [buffer][K, V]
  auto* stored = reinterpret_cast<typename Kv::Value*>(tiles + 2 * kTile);  // 8-bit: [buffer][K, V]
  constexpr bool kScaled = std::is_same_v<Kv, KvF8>;
  const float scale = args.scale * (kScaled ? args.kv.k_scale : 1.0F);
  const int position0 = args.step.position[row0];
  const int end = position0 + rows;
  const int begin = args.window > 0 ? max(0, position0 - args.window + 1) : 0;
  const std::int32_t* pages =
      args.step.pages + static_cast<std::int64_t>(args.step.sequence[row0]) * args.step.max_pages;
  const int first = begin / kTokens;
  const int last = (end + kTokens - 1) / kTokens;
  const auto load = [&](int page, int buffer) {
    const auto* from = KvHead<Kv>(args.kv, pages[page], kv_head);
    if constexpr (kWidened<Kv>) {
      LoadStored<Kv, kDim>(stored + buffer * 2 * kTokens * kDim, from, end - page * kTokens);
    } else {
      std::uint16_t* tile = tiles + buffer * 2 * kTile;
      LoadPage<Kv, kDim>(tile, tile + kTile, from, end - page * kTokens);
    }
  };
  load(first, 0);
  CopyCommit();
  LoadQuery<Operand<Kv>, kDim>(q_hi, q_lo, args.q + row0 * args.ldq + head * kDim, args.ldq, rows);

  RowState<kDim> state;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int page = first; page < last; ++page) {
    const int buffer = (page - first) & 1;
    if (page + 1 < last) {
      load(page + 1, buffer ^ 1);
    }
    CopyCommit();
    CopyWait<1>();
    __syncthreads();
    const std::uint16_t* tile = tiles + (kWidened<Kv> ? 0 : buffer * 2 * kTile);
    if constexpr (kWidened<Kv>) {
      Widen<Kv, kDim>(tiles, stored + buffer * 2 * kTokens * kDim);
      __syncthreads();
    }
    float s[4][4] = {};
    Scores<Operand<Kv>, kDim>(s, q_hi, q_lo, tile);
    if constexpr (Kv::kTokenScales) {
      ScaleColumns(s, KvScales<Kv>(args.kv, pages[page], kv_head), end - page * kTokens);
    }
    Softmax<kDim>(s, &state, args, scale, position0 + warp * 16, page * kTokens);
    if constexpr (Kv::kTokenScales) {
      ScaleColumns(s, KvScales<Kv>(args.kv, pages[page], kv_head) + kTokens, end - page * kTokens);
    }
    Accumulate<Operand<Kv>, kDim>(&state, s, tile + kTile);
    __syncthreads();
  }
  CopyWait<0>();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp * 16 + lane / 4 + r * 8;
    float factor = 0;
    if (args.sinks != nullptr) {
      const float sink = args.sinks[head] * kLog2e;
      const float top = fmaxf(sink, state.top[r]);
      const float shrink = exp2f(state.top[r] - top);
      factor = shrink / (state.sum[r] * shrink + exp2f(sink - top));
    } else {
      factor = state.sum[r] > 0 ? 1.0F / state.sum[r] : 0.0F;
    }
    factor *= kScaled ? args.kv.v_scale : 1.0F;
    if (row < rows) {
      float* y = args.y + (row0 + row) * args.ldy + head * kDim + lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) {
        y[d * 8] = state.out[d][r * 2] * factor;
        y[d * 8 + 1] = state.out[d][r * 2 + 1] * factor;
      }
    }
  }
}

template <class Kv, int kDim>
Status LaunchTiles(const AttentionArgs& args,
                   const std::int32_t* row_begin,
                   std::int64_t sequences,
                   std::int64_t max_rows,
                   Stream stream) {
  const auto kernel = &AttentionTilesKernel<Kv, kDim>;
  constexpr std::size_t kBytes = SharedBytes<Kv>(kDim);
  if (const Status status = AllowShared(kernel, kBytes); status != Status::kOk) {
    return status;
  }
  const dim3 grid(static_cast<unsigned>((max_rows + kRows - 1) / kRows),
                  static_cast<unsigned>(args.q_heads),
                  static_cast<unsigned>(sequences));
  return LAUNCH_KERNEL(kernel, grid, dim3(kThreads), kBytes, stream, args, row_begin);
}

template <class Kv>
Status LaunchDim(const AttentionArgs& args,
                 const std::int32_t* row_begin,
                 std::int64_t sequences,
                 std::int64_t max_rows,
                 Stream stream) {
  switch (args.kv.head_dim) {
    case 64:
      return LaunchTiles<Kv, 64>(args, row_begin, sequences, max_rows, stream);
    case 80:
      return LaunchTiles<Kv, 80>(args, row_begin, sequences, max_rows, stream);
    case 96:
      return LaunchTiles<Kv, 96>(args, row_begin, sequences, max_rows, stream);
    case 112:
      return LaunchTiles<Kv, 112>(args, row_begin, sequences, max_rows, stream);
    case 128:
      return LaunchTiles<Kv, 128>(args, row_begin, sequences, max_rows, stream);
    case 192:
      return LaunchTiles<Kv, 192>(args, row_begin, sequences, max_rows, stream);
    case 256:
      return LaunchTiles<Kv, 256>(args, row_begin, sequences, max_rows, stream);
    default:
      return Status::kInvalidValue;
  }
}

}  // namespace

bool HasAttentionTiles(const KvPages& kv) {
  const int d = kv.head_dim;
  const bool has_dim =
      d == 64 || d == 80 || d == 96 || d == 112 || d == 128 || d == 192 || d == 256;
  return has_dim && kv.format != KvFormat::kF32;
}

Status AttentionTiles(const AttentionArgs& args,
                      const std::int32_t* row_begin,
                      std::int64_t sequences,
                      std::int64_t max_rows,
                      Stream stream) {
  if (sequences == 0 || max_rows == 0) {
    return Status::kOk;
  }
  if (!HasAttentionTiles(args.kv) || sequences > 65535) {
    return Status::kInvalidValue;
  }
  return WithKvFormat(args.kv.format, [&](auto kv) {
    if constexpr (std::is_same_v<decltype(kv), KvF32>) {
      return Status::kInvalidValue;
    } else {
      return LaunchDim<decltype(kv)>(args, row_begin, sequences, max_rows, stream);
    }
  });
}

}  // namespace inferd::kernels::cuda
