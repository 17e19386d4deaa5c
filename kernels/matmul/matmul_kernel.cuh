// SPDX-License-Identifier: Apache-2.0
// The product kernels, one pair per weight format. y [m, n] = x [m, k] W^T on m16n8k16 tensor
// cores: weights are the 16 rows, activations (split into bfloat16 terms) the 8 columns.
//
// k is cut into chunks of 32 and the chunks into four quarters; a row's result is the sum of the
// quarters' sums, in order. Both kernels do this arithmetic, so m decides only the speed:
//
//   small  16 rows of W per block, a quarter per warp; activations straight from the caches. Bytes:
//          W once per 8 * kTiles rows of x. For m up to 32.
//   tiled  64 rows of W per block, 16 per warp, quarters one after the other; activations through
//          shared memory by cp.async. For larger m.
#pragma once

#include "kernels/matmul/matmul_fragments.cuh"

namespace inferd::kernels::cuda {

inline constexpr int kMatMulThreads = 128;
inline constexpr int kTiledTiles = 4;

template <class Format, int kTiles>
__global__ void __launch_bounds__(kMatMulThreads, 3) MatMulSmallKernel(MatMulLaunch args) {
  SHARED_ARRAY(float, quarters, 3 * kTiles * 32 * 4);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int quarter = static_cast<int>(threadIdx.x) / 32;
  const int t = lane % 4;
  const MatMulPlace place = PlaceOf(args, static_cast<std::int64_t>(blockIdx.x) * 16);
  const WeightRow low = RowOf(args, place, place.row + lane / 4);
  const WeightRow high = RowOf(args, place, place.row + lane / 4 + 8);
  const int k = static_cast<int>(args.w.k);
  const int chunks = (k + 31) / 32;
  const int begin = QuarterBegin(chunks, quarter);
  const int end = QuarterBegin(chunks, quarter + 1);
  const bool aligned = args.ldx % 4 == 0 && reinterpret_cast<std::uintptr_t>(args.x) % 16 == 0;
  for (std::int64_t tile0 = static_cast<std::int64_t>(blockIdx.y) * kTiles * 8; tile0 < place.count;
       tile0 += static_cast<std::int64_t>(gridDim.y) * kTiles * 8) {
    const float* x_rows[kTiles];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const std::int64_t position = tile0 + j * 8 + lane / 4;
      x_rows[j] = nullptr;
      if (position < place.count) {
        const std::int64_t at = place.first + position;
        x_rows[j] = args.x + (args.source != nullptr ? args.source[at] : at) * args.ldx;
      }
    }
    float sum[kTiles][4] = {};
    typename Format::Raw next_low{};
    typename Format::Raw next_high{};
    if (begin < end) {
      next_low = Format::Fetch(low, begin, t);
      next_high = Format::Fetch(high, begin, t);
    }
    for (int chunk = begin; chunk < end; ++chunk) {
      WeightFragment<Format> w;
      w.Set(next_low, next_high);
      if (chunk + 1 < end) {
        next_low = Format::Fetch(low, chunk + 1, t);
        next_high = Format::Fetch(high, chunk + 1, t);
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        float x[8];
        LoadActivations<Format::kScaling>(x_rows[j], chunk * 32, t, k, aligned, x);
        MultiplyChunk<Format>(w, x, sum[j]);
      }
    }
    if (quarter > 0) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          quarters[(((quarter - 1) * kTiles + j) * 4 + i) * 32 + lane] = sum[j][i];
        }
      }
    }
    __syncthreads();
    if (quarter == 0) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int q = 0; q < 3; ++q) {
            sum[j][i] += quarters[((q * kTiles + j) * 4 + i) * 32 + lane];
          }
        }
        StoreTile(args, place, tile0 + j * 8, sum[j]);
      }
    }
    __syncthreads();
  }
}

// Floats between two rows of the shared tile: an odd number of 16-byte pieces keeps the banks
// apart.
inline constexpr int kActPitch = 36;

// Queues one chunk of the block's activations; zeros past k and past the last row.
DEVICE void QueueActivations(
    float* tile, const MatMulLaunch& args, const int* rows, int chunk, bool aligned) {
  const int k = static_cast<int>(args.w.k);
  if (aligned && k % 4 == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < kTiledTiles * 8 * 8; i += kMatMulThreads) {
      const int row = i / 8;
      const int at = chunk * 32 + i % 8 * 4;
      const bool ok = rows[row] >= 0 && at < k;
      CopyAsync16(
          tile + row * kActPitch + i % 8 * 4, args.x + (ok ? rows[row] * args.ldx + at : 0), ok);
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < kTiledTiles * 8 * 32; i += kMatMulThreads) {
      const int row = i / 32;
      const int at = chunk * 32 + i % 32;
      const bool ok = rows[row] >= 0 && at < k;
      CopyAsync4(
          tile + row * kActPitch + i % 32, args.x + (ok ? rows[row] * args.ldx + at : 0), ok);
    }
  }
}

template <class Format>
__global__ void __launch_bounds__(kMatMulThreads, 2) MatMulTiledKernel(MatMulLaunch args) {
  constexpr int kTile = kTiledTiles * 8 * kActPitch;
  SHARED_ARRAY(float, tiles, 2 * kTile);
  SHARED_ARRAY(int, rows, kTiledTiles * 8);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int t = lane % 4;
  const MatMulPlace place = PlaceOf(args, static_cast<std::int64_t>(blockIdx.x) * 64 + warp * 16);
  const WeightRow low = RowOf(args, place, place.row + lane / 4);
  const WeightRow high = RowOf(args, place, place.row + lane / 4 + 8);
  const int chunks = static_cast<int>((args.w.k + 31) / 32);
  const bool aligned = args.ldx % 4 == 0 && reinterpret_cast<std::uintptr_t>(args.x) % 16 == 0;
  for (std::int64_t tile0 = static_cast<std::int64_t>(blockIdx.y) * kTiledTiles * 8;
       tile0 < place.count;
       tile0 += static_cast<std::int64_t>(gridDim.y) * kTiledTiles * 8) {
    if (threadIdx.x < kTiledTiles * 8) {
      const std::int64_t position = tile0 + threadIdx.x;
      const std::int64_t at = place.first + position;
      rows[threadIdx.x] = position < place.count
                              ? static_cast<int>(args.source != nullptr ? args.source[at] : at)
                              : -1;
    }
    __syncthreads();
    QueueActivations(tiles, args, rows, 0, aligned);
    CopyCommit();
    float total[kTiledTiles][4] = {};
    float sum[kTiledTiles][4] = {};
    typename Format::Raw next_low = Format::Fetch(low, 0, t);
    typename Format::Raw next_high = Format::Fetch(high, 0, t);
    int quarter = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (chunk + 1 < chunks) {
        QueueActivations(tiles + (chunk + 1) % 2 * kTile, args, rows, chunk + 1, aligned);
      }
      CopyCommit();
      WeightFragment<Format> w;
      w.Set(next_low, next_high);
      if (chunk + 1 < chunks) {
        next_low = Format::Fetch(low, chunk + 1, t);
        next_high = Format::Fetch(high, chunk + 1, t);
      }
      CopyWait<1>();
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kTiledTiles; ++j) {
        float x[8];
        LoadActivations<Format::kScaling>(
            tiles + chunk % 2 * kTile + (j * 8 + lane / 4) * kActPitch, 0, t, 32, true, x);
        MultiplyChunk<Format>(w, x, sum[j]);
      }
      // With fewer than four chunks some quarters are empty and end before the first chunk does.
      while (quarter < 4 && chunk + 1 >= QuarterBegin(chunks, quarter + 1)) {
#pragma unroll
        for (int j = 0; j < kTiledTiles; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            total[j][i] = quarter == 0 ? sum[j][i] : total[j][i] + sum[j][i];
            sum[j][i] = 0;
          }
        }
        ++quarter;
      }
      __syncthreads();
    }
    CopyWait<0>();
#pragma unroll
    for (int j = 0; j < kTiledTiles; ++j) {
      StoreTile(args, place, tile0 + j * 8, total[j]);
    }
  }
}

template <class Format>
Status LaunchMatMul(const MatMulLaunch& args, std::int64_t rows, Stream stream) {
  // Of a mixture, the rows of one expert are what fills a tile.
  const std::int64_t fill = args.experts > 0 ? (rows + args.experts - 1) / args.experts : rows;
  const auto launch = [&](auto kernel, int tiles, int block_rows) {
    const std::int64_t groups = (fill + tiles * 8 - 1) / (tiles * 8);
    const dim3 grid(static_cast<unsigned>((args.w.n + block_rows - 1) / block_rows),
                    static_cast<unsigned>(groups < 65535 ? groups : 65535),
                    static_cast<unsigned>(args.experts > 0 ? args.experts : 1));
    return LAUNCH_KERNEL(kernel, grid, dim3(kMatMulThreads), 0, stream, args);
  };
  if (fill <= 8) {
    return launch(&MatMulSmallKernel<Format, 1>, 1, 16);
  }
  if (fill <= 32) {
    return launch(&MatMulSmallKernel<Format, 4>, 4, 16);
  }
  return launch(&MatMulTiledKernel<Format>, kTiledTiles, 64);
}

}  // namespace inferd::kernels::cuda
