// SPDX-License-Identifier: Apache-2.0
// Splitting takes four values of a row per thread: 4 bytes read and 2 written per value and term.
// Gathering takes one value of n per thread; neighbours read what is near where groups are few.
// Bytes: 12 per value.
#include "kernels/cuda/shim.cuh"
#include "kernels/matmul/inputs_cuda.h"

namespace inferd::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;  // values of a thread
constexpr std::int64_t kMaxGridRows = 65535;

struct alignas(8) Bits16x4 {
  std::uint16_t value[kEach];
};

struct SplitArgs {
  const float* x;
  std::int64_t ldx;
  int rows;
  int k;
  float scale;
  std::uint16_t* out;
  std::int64_t ldo;
  std::int64_t term_stride;
  bool aligned;  // every row begins where four values can be read and written at once
};

template <bool kBf16, int kTerms>
__global__ void __launch_bounds__(kThreads) SplitRowsKernel(SplitArgs args) {
  const int begin =
      (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * kEach;
  if (begin >= args.k) {
    return;
  }
  const int count = args.k - begin < kEach ? args.k - begin : kEach;
  const bool whole = args.aligned && count == kEach;
  for (int row = static_cast<int>(blockIdx.y); row < args.rows;
       row += static_cast<int>(gridDim.y)) {
    const float* const x = args.x + row * args.ldx + begin;
    float value[kEach] = {0, 0, 0, 0};
    if (whole) {
      const float4 four = *reinterpret_cast<const float4*>(x);
      value[0] = four.x;
      value[1] = four.y;
      value[2] = four.z;
      value[3] = four.w;
    } else {
      for (int i = 0; i < count; ++i) {
        value[i] = x[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      value[i] *= args.scale;
    }
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      Bits16x4 bits;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        bits.value[i] = kBf16 ? FloatToBf16Bits(value[i]) : FloatToHalfBits(value[i]);
        value[i] -= kBf16 ? Bf16BitsToFloat(bits.value[i]) : HalfBitsToFloat(bits.value[i]);
        value[i] *= kBf16 ? 1.0F : kSecondHalf;
      }
      std::uint16_t* const out = args.out + term * args.term_stride + row * args.ldo + begin;
      if (whole) {
        *reinterpret_cast<Bits16x4*>(out) = bits;
      } else {
        for (int i = 0; i < count; ++i) {
          out[i] = bits.value[i];
        }
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads) GatherColumnsKernel(const float* x,
                                                                std::int64_t ldx,
                                                                const std::int32_t* columns,
                                                                int rows,
                                                                int n,
                                                                float* y,
                                                                std::int64_t ldy) {
  const int j = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (j >= n) {
    return;
  }
  const std::int32_t column = columns[j];
  for (int row = static_cast<int>(blockIdx.y); row < rows; row += static_cast<int>(gridDim.y)) {
    y[row * ldy + j] = column < 0 ? 0.0F : x[row * ldx + column];
  }
}

dim3 GridOf(std::int64_t rows, std::int64_t threads) {
  return {static_cast<unsigned>((threads + kThreads - 1) / kThreads),
          static_cast<unsigned>(rows < kMaxGridRows ? rows : kMaxGridRows)};
}

}  // namespace

Status SplitRows(DType type,
                 const float* x,
                 std::int64_t ldx,
                 std::int64_t rows,
                 std::int64_t k,
                 float scale,
                 int terms,
                 std::uint16_t* out,
                 std::int64_t ldo,
                 std::int64_t term_stride,
                 Stream stream) {
  const bool bf16 = type == DType::kBF16;
  if ((!bf16 && type != DType::kF16) || terms < 1 || terms > 2 || rows < 0 || k < 1 || ldo < k) {
    return Status::kInvalidValue;
  }
  if (rows == 0) {
    return Status::kOk;
  }
  const bool aligned = ldx % kEach == 0 && ldo % kEach == 0 && term_stride % kEach == 0 &&
                       reinterpret_cast<std::uintptr_t>(x) % 16 == 0 &&
                       reinterpret_cast<std::uintptr_t>(out) % 8 == 0;
  const SplitArgs args = {
      x, ldx, static_cast<int>(rows), static_cast<int>(k), scale, out, ldo, term_stride, aligned};
  const dim3 grid = GridOf(rows, (k + kEach - 1) / kEach);
  if (bf16) {
    return terms == 1
               ? LAUNCH_KERNEL((&SplitRowsKernel<true, 1>), grid, dim3(kThreads), 0, stream, args)
               : LAUNCH_KERNEL((&SplitRowsKernel<true, 2>), grid, dim3(kThreads), 0, stream, args);
  }
  return terms == 1
             ? LAUNCH_KERNEL((&SplitRowsKernel<false, 1>), grid, dim3(kThreads), 0, stream, args)
             : LAUNCH_KERNEL((&SplitRowsKernel<false, 2>), grid, dim3(kThreads), 0, stream, args);
}

Status GatherColumns(const float* x,
                     std::int64_t ldx,
                     const std::int32_t* columns,
                     std::int64_t rows,
                     std::int64_t n,
                     float* y,
                     std::int64_t ldy,
                     Stream stream) {
  if (rows < 0 || n < 1 || ldy < n || columns == nullptr) {
    return Status::kInvalidValue;
  }
  if (rows == 0) {
    return Status::kOk;
  }
  return LAUNCH_KERNEL(&GatherColumnsKernel,
                       GridOf(rows, n),
                       dim3(kThreads),
                       0,
                       stream,
                       x,
                       ldx,
                       columns,
                       static_cast<int>(rows),
                       static_cast<int>(n),
                       y,
                       ldy);
}

}  // namespace inferd::kernels::cuda
