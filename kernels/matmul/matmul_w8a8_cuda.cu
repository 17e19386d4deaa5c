// SPDX-License-Identifier: Apache-2.0
// y [m, n] = (x [m, k] W^T) * scales on m16n8k32 tensor cores: weights are the 16 rows, activations
// the 8 columns. k is cut into chunks of 64, of which lane t of a quad has the 16 bytes from 16 t
// on, in W as in x, and the chunks into four quarters. An E4M3 sum is that of the quarters' sums,
// in order; a chunk's products are summed by the tensor cores, which keep few bits, and chunks in
// float. Integers may be added in any order.
//
//   small  16 rows of W per block, a quarter per warp; activations straight from the caches. Bytes:
//          W once per 8 * kTiles rows of x. For m up to 32.
//   tiled  64 rows of W per block, 16 per warp, quarters one after the other; 64 rows of x through
//          shared memory, two chunks at a time, three times buffered. For larger m.
#include "kernels/cuda/mma_bytes.cuh"
#include "kernels/matmul/matmul_w8a8_cuda.h"

namespace inferd::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kChunk = 64;
constexpr int kTiles = 8;        // of 8 rows of x, per block of the tiled kernel
constexpr int kStageChunks = 2;  // per buffer of the tiled kernel
constexpr int kStages = 3;

template <ByteType kType>
struct SumOf {
  using Type = int;
};
template <>
struct SumOf<ByteType::kFp8> {
  using Type = float;
};
template <ByteType kType>
using Sum = typename SumOf<kType>::Type;

DEVICE int QuarterBegin(int chunks, int quarter) { return chunks * quarter / 4; }

// 16 bytes of a row of W from k0 on; zeros past its end.
DEVICE uint4 FetchWeights(const std::byte* row, int k0, int k, bool aligned) {
  if (aligned) {
    return k0 < k ? *reinterpret_cast<const uint4*>(row + k0) : uint4{0, 0, 0, 0};
  }
  std::uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (k0 + i < k) {
      words[i / 4] |= static_cast<std::uint32_t>(row[k0 + i]) << (i % 4 * 8);
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// sum += W x for one chunk: rows lane / 4 (low) and lane / 4 + 8 (high) of W, 8 rows of x.
DEVICE void MultiplyChunk(const uint4& low, const uint4& high, const uint4& x, int (&sum)[4]) {
  const std::uint32_t first[4] = {low.x, high.x, low.y, high.y};
  const std::uint32_t second[4] = {low.z, high.z, low.w, high.w};
  MmaInt8(sum, first, x.x, x.y);
  MmaInt8(sum, second, x.z, x.w);
}
DEVICE void MultiplyChunk(const uint4& low, const uint4& high, const uint4& x, float (&sum)[4]) {
  const std::uint32_t first[4] = {low.x, high.x, low.y, high.y};
  const std::uint32_t second[4] = {low.z, high.z, low.w, high.w};
  float part[4] = {0, 0, 0, 0};
  MmaFp8(part, first, x.x, x.y);
  MmaFp8(part, second, x.z, x.w);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[i] += part[i];
  }
}

// y of one tile: rows of W lane / 4 (+ 8), rows of x 2 (lane % 4) and the next.
template <class T>
DEVICE void StoreTile(const MatMulW8A8Args& args,
                      std::int64_t row,
                      std::int64_t tile0,
                      const T (&sum)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t n = row + lane / 4 + i / 2 * 8;
    const std::int64_t at = tile0 + lane % 4 * 2 + i % 2;
    if (n < args.n && at < args.m) {
      const float bias = args.bias != nullptr ? args.bias[n] : 0.0F;
      const float of_row = static_cast<float>(sum[i]) * args.x.scales[at];
      args.y[at * args.ldy + n] = fmaf(of_row, args.w_scales[n], bias);
    }
  }
}

template <ByteType kType, int kSmallTiles>
__global__ void __launch_bounds__(kThreads, 3) W8A8SmallKernel(MatMulW8A8Args args) {
  SHARED_ARRAY(Sum<kType>, quarters, 3 * kSmallTiles * 32 * 4);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int quarter = static_cast<int>(threadIdx.x) / 32;
  const int k = static_cast<int>(args.k);
  const int pitch = static_cast<int>(args.x.pitch);
  const bool aligned = args.k % 16 == 0;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * 16;
  const std::int64_t low_row = row + lane / 4 < args.n ? row + lane / 4 : args.n - 1;
  const std::int64_t high_row = row + lane / 4 + 8 < args.n ? row + lane / 4 + 8 : args.n - 1;
  const std::byte* low_at = args.w + low_row * args.k;
  const std::byte* high_at = args.w + high_row * args.k;
  const int chunks = (k + kChunk - 1) / kChunk;
  const int begin = QuarterBegin(chunks, quarter);
  const int end = QuarterBegin(chunks, quarter + 1);
  const int column = lane % 4 * 16;
  for (std::int64_t tile0 = static_cast<std::int64_t>(blockIdx.y) * kSmallTiles * 8; tile0 < args.m;
       tile0 += static_cast<std::int64_t>(gridDim.y) * kSmallTiles * 8) {
    const std::uint8_t* x_rows[kSmallTiles];
#pragma unroll
    for (int j = 0; j < kSmallTiles; ++j) {
      const std::int64_t at = tile0 + j * 8 + lane / 4;
      x_rows[j] = at < args.m ? args.x.values + at * args.x.pitch : nullptr;
    }
    Sum<kType> sum[kSmallTiles][4] = {};
    // Two chunks are on their way during the arithmetic.
    uint4 low[2];
    uint4 high[2];
#pragma unroll
    for (int ahead = 0; ahead < 2; ++ahead) {
      const int k0 = begin + ahead < end ? (begin + ahead) * kChunk + column : k;
      low[ahead] = FetchWeights(low_at, k0, k, aligned);
      high[ahead] = FetchWeights(high_at, k0, k, aligned);
    }
    for (int chunk = begin; chunk < end; ++chunk) {
      const uint4 low_now = low[0];
      const uint4 high_now = high[0];
      low[0] = low[1];
      high[0] = high[1];
      if (chunk + 2 < end) {
        low[1] = FetchWeights(low_at, (chunk + 2) * kChunk + column, k, aligned);
        high[1] = FetchWeights(high_at, (chunk + 2) * kChunk + column, k, aligned);
      }
      const int at = chunk * kChunk + column;
#pragma unroll
      for (int j = 0; j < kSmallTiles; ++j) {
        uint4 x{0, 0, 0, 0};
        if (x_rows[j] != nullptr && at < pitch) {
          x = *reinterpret_cast<const uint4*>(x_rows[j] + at);
        }
        MultiplyChunk(low_now, high_now, x, sum[j]);
      }
    }
    if (quarter > 0) {
#pragma unroll
      for (int j = 0; j < kSmallTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          quarters[(((quarter - 1) * kSmallTiles + j) * 4 + i) * 32 + lane] = sum[j][i];
        }
      }
    }
    __syncthreads();
    if (quarter == 0) {
#pragma unroll
      for (int j = 0; j < kSmallTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int q = 0; q < 3; ++q) {
            sum[j][i] += quarters[((q * kSmallTiles + j) * 4 + i) * 32 + lane];
          }
        }
        StoreTile(args, row, tile0 + j * 8, sum[j]);
      }
    }
    __syncthreads();
  }
}

constexpr int kTileBytes = kTiles * 8 * kChunk;  // of one chunk

// Queues the block's rows of x of one stage, chunk after chunk; zeros past the rows' ends and past
// the last row.
DEVICE void QueueRows(std::uint8_t* stage,
                      const MatMulW8A8Args& args,
                      std::int64_t tile0,
                      int first) {
  constexpr int kPieces = kStageChunks * kTileBytes / 16;
#pragma unroll
  for (int i = 0; i < kPieces / kThreads; ++i) {
    const int piece = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = piece / (kStageChunks * 4);
    const int column = piece % (kStageChunks * 4) * 16;
    const std::int64_t at = static_cast<std::int64_t>(first) * kChunk + column;
    const bool ok = tile0 + row < args.m && at < args.x.pitch;
    CopyAsync16(stage + column / kChunk * kTileBytes + row * kChunk + column % kChunk,
                args.x.values + (ok ? (tile0 + row) * args.x.pitch + at : 0),
                ok);
  }
}

template <ByteType kType>
__global__ void __launch_bounds__(kThreads, 2) W8A8TiledKernel(MatMulW8A8Args args) {
  constexpr int kStageBytes = kStageChunks * kTileBytes;
  SHARED_ARRAY(std::uint8_t, stages, kStages * kStageBytes);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int k = static_cast<int>(args.k);
  const bool aligned = args.k % 16 == 0;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * 64 + warp * 16;
  const std::int64_t low_row = row + lane / 4 < args.n ? row + lane / 4 : args.n - 1;
  const std::int64_t high_row = row + lane / 4 + 8 < args.n ? row + lane / 4 + 8 : args.n - 1;
  const std::byte* low_at = args.w + low_row * args.k;
  const std::byte* high_at = args.w + high_row * args.k;
  const int chunks = (k + kChunk - 1) / kChunk;
  const int turns = (chunks + kStageChunks - 1) / kStageChunks;
  const int column = lane % 4 * 16;
  for (std::int64_t tile0 = static_cast<std::int64_t>(blockIdx.y) * kTiles * 8; tile0 < args.m;
       tile0 += static_cast<std::int64_t>(gridDim.y) * kTiles * 8) {
#pragma unroll
    for (int turn = 0; turn < kStages - 1; ++turn) {
      if (turn < turns) {
        QueueRows(stages + turn * kStageBytes, args, tile0, turn * kStageChunks);
      }
      CopyCommit();
    }
    uint4 low[kStageChunks];
    uint4 high[kStageChunks];
#pragma unroll
    for (int c = 0; c < kStageChunks; ++c) {
      low[c] = FetchWeights(low_at, c * kChunk + column, k, aligned);
      high[c] = FetchWeights(high_at, c * kChunk + column, k, aligned);
    }
    Sum<kType> sum[kTiles][4] = {};
    Sum<kType> total[kTiles][4] = {};  // of E4M3: the quarters that are done
    int quarter = 0;
    for (int turn = 0; turn < turns; ++turn) {
      CopyWait<kStages - 2>();
      __syncthreads();  // the turn's rows are there, and those of the last turn have been read
      if (turn + kStages - 1 < turns) {
        QueueRows(stages + (turn + kStages - 1) % kStages * kStageBytes,
                  args,
                  tile0,
                  (turn + kStages - 1) * kStageChunks);
      }
      CopyCommit();
      const std::uint8_t* stage = stages + turn % kStages * kStageBytes;
#pragma unroll
      for (int c = 0; c < kStageChunks; ++c) {
        const int chunk = turn * kStageChunks + c;
        const uint4 low_now = low[c];
        const uint4 high_now = high[c];
        const int next = (chunk + kStageChunks) * kChunk + column;
        low[c] = FetchWeights(low_at, next, k, aligned);
        high[c] = FetchWeights(high_at, next, k, aligned);
        // Past the last chunk there are zeros.
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const uint4 x = *reinterpret_cast<const uint4*>(stage + c * kTileBytes +
                                                          (j * 8 + lane / 4) * kChunk + column);
          MultiplyChunk(low_now, high_now, x, sum[j]);
        }
        // With fewer than four chunks some quarters are empty and end before the first chunk does.
        while (kType == ByteType::kFp8 && quarter < 4 &&
               chunk + 1 >= QuarterBegin(chunks, quarter + 1)) {
#pragma unroll
          for (int j = 0; j < kTiles; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              total[j][i] = quarter == 0 ? sum[j][i] : total[j][i] + sum[j][i];
              sum[j][i] = 0;
            }
          }
          ++quarter;
        }
      }
    }
    CopyWait<0>();
    __syncthreads();  // before the next tile's rows replace these
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      StoreTile(args, row, tile0 + j * 8, kType == ByteType::kFp8 ? total[j] : sum[j]);
    }
  }
}

template <ByteType kType>
Status Run(const MatMulW8A8Args& args, Stream stream) {
  const auto launch = [&](auto kernel, int x_rows, int w_rows) {
    const std::int64_t groups = (args.m + x_rows - 1) / x_rows;
    const dim3 grid(static_cast<unsigned>((args.n + w_rows - 1) / w_rows),
                    static_cast<unsigned>(groups < 65535 ? groups : 65535));
    return LAUNCH_KERNEL(kernel, grid, dim3(kThreads), 0, stream, args);
  };
  if (args.m <= 8) {
    return launch(&W8A8SmallKernel<kType, 1>, 8, 16);
  }
  if (args.m <= 32) {
    return launch(&W8A8SmallKernel<kType, 4>, 32, 16);
  }
  return launch(&W8A8TiledKernel<kType>, kTiles * 8, 64);
}

}  // namespace

Status MatMulW8A8(const MatMulW8A8Args& args, Stream stream) {
  const bool is_int8 = args.x.type == ByteType::kInt8;
  const std::int64_t most = is_int8 ? MatMulW8A8Args::kMostInt8Columns : 0x7fffffff - 4 * kChunk;
  if (args.k < 1 || args.k > most || args.w_scales == nullptr ||
      args.x.pitch != QuantisedRows::PitchOf(args.k)) {
    return Status::kInvalidValue;
  }
  if (args.m == 0 || args.n == 0) {
    return Status::kOk;
  }
  return is_int8 ? Run<ByteType::kInt8>(args, stream) : Run<ByteType::kFp8>(args, stream);
}

}  // namespace inferd::kernels::cuda
