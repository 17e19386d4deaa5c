// SPDX-License-Identifier: Apache-2.0
// One block per row: the row's values are made twice (the second time from the caches), first for
// the largest, then to be rounded. Bytes: what the kernel without rounding reads, one byte per
// value and one float per row written.
#include "kernels/cuda/reduce.cuh"
#include "kernels/rows/gate_values.cuh"
#include "kernels/rows/quantised_rows_cuda.h"

namespace inferd::kernels::cuda {
namespace {

constexpr int kThreads = 256;      // as the norms without rounding, whose sums these must have
constexpr float kLeast = 1e-30F;   // of a row's largest size: its inverse is finite
constexpr int kGateThreads = 512;  // rows are longer and their values cost more

// The largest of all threads' bits. Of sizes of floats: NaN is larger than infinity, and infinity
// than all numbers.
template <int kBlock>
DEVICE unsigned BlockMaxBits(unsigned bits, unsigned* scratch) {
#pragma unroll
  for (int by = 16; by > 0; by >>= 1) {
    const unsigned other = __shfl_xor_sync(kFullMask, bits, by);
    bits = other > bits ? other : bits;
  }
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = bits;
  }
  __syncthreads();
  unsigned top = scratch[0];
#pragma unroll
  for (int i = 1; i < kBlock / 32; ++i) {
    top = scratch[i] > top ? scratch[i] : top;
  }
  return top;
}

template <ByteType kType>
DEVICE std::uint32_t ByteOf(float value) {
  if (kType == ByteType::kFp8) {
    return FloatToFp8Bits(value);
  }
  const float rounded = fminf(fmaxf(rintf(value), -127.0F), 127.0F);  // NaN becomes a number
  return static_cast<std::uint8_t>(static_cast<std::int8_t>(rounded));
}

// The block's row from value(i), i < k.
template <ByteType kType, int kBlock, class Value>
DEVICE void QuantiseRow(int k, const QuantisedRows& out, unsigned* scratch, Value value) {
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t row = blockIdx.x;
  unsigned bits = 0;
  for (int i = thread; i < k; i += kBlock) {
    const unsigned size = __float_as_uint(value(i)) & 0x7fffffffU;
    bits = size > bits ? size : bits;
  }
  const float largest = __uint_as_float(BlockMaxBits<kBlock>(bits, scratch));
  constexpr float kTop = kType == ByteType::kFp8 ? 448.0F : 127.0F;
  const float inverse = largest < kLeast ? 0.0F : kTop / largest;
  if (thread == 0) {
    out.scales[row] = largest / kTop;
  }
  auto* words = reinterpret_cast<std::uint32_t*>(out.values + row * out.pitch);
  const int count = static_cast<int>(out.pitch / 4);
  for (int word = thread; word < count; word += kBlock) {
    std::uint32_t packed = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = 4 * word + j;
      if (i < k) {
        const float v = value(i);
        packed |= ByteOf<kType>(v * inverse) << (8 * j);
        if (out.y != nullptr) {
          out.y[row * out.ldy + i] = v;
        }
      }
    }
    words[word] = packed;
  }
}

template <ByteType kType>
__global__ void __launch_bounds__(kThreads)
    QuantiseRowsKernel(const float* x_rows, std::int64_t ldx, int k, QuantisedRows out) {
  SHARED_ARRAY(unsigned, scratch, kThreads / 32);
  const float* x = x_rows + blockIdx.x * ldx;
  QuantiseRow<kType, kThreads>(k, out, scratch, [x](int i) { return x[i]; });
}

template <ByteType kType>
__global__ void __launch_bounds__(kThreads) RmsNormQuantisedKernel(float* x_rows,
                                                                   std::int64_t ldx,
                                                                   const float* add,
                                                                   std::int64_t ldadd,
                                                                   const float* weight,
                                                                   float eps,
                                                                   int k,
                                                                   QuantisedRows out) {
  SHARED_ARRAY(float, sums, kThreads / 32);
  SHARED_ARRAY(unsigned, scratch, kThreads / 32);
  float* x = x_rows + blockIdx.x * ldx;
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < k; i += kThreads) {
    float value = x[i];
    if (add != nullptr) {
      value += add[blockIdx.x * ldadd + i];
      x[i] = value;
    }
    squares = fmaf(value, value, squares);
  }
  // Threads read what others have written only after the barriers of the two reductions.
  const float sum = BlockSum<kThreads>(squares, sums);
  const float inverse = 1.0F / sqrtf(sum / static_cast<float>(k) + eps);
  QuantiseRow<kType, kThreads>(k, out, scratch, [=](int i) {
    return weight != nullptr ? x[i] * inverse * weight[i] : x[i] * inverse;
  });
}

template <ByteType kType, Gate kKind>
__global__ void __launch_bounds__(kGateThreads) GateMulQuantisedKernel(
    const float* gate_rows, const float* up_rows, std::int64_t ld, int n, QuantisedRows out) {
  SHARED_ARRAY(unsigned, scratch, kGateThreads / 32);
  const float* gate = gate_rows + blockIdx.x * ld;
  const float* up = up_rows + blockIdx.x * ld;
  QuantiseRow<kType, kGateThreads>(
      n, out, scratch, [=](int i) { return GateValue<kKind>(gate[i]) * up[i]; });
}

bool Fits(std::int64_t k, const QuantisedRows& out) {
  return k > 0 && out.values != nullptr && out.scales != nullptr &&
         out.pitch == QuantisedRows::PitchOf(k);
}

template <ByteType kType>
auto GateKernel(Gate kind) {
  return kind == Gate::kSilu       ? &GateMulQuantisedKernel<kType, Gate::kSilu>
         : kind == Gate::kGeluTanh ? &GateMulQuantisedKernel<kType, Gate::kGeluTanh>
                                   : &GateMulQuantisedKernel<kType, Gate::kGelu>;
}

// Launches the kernel of out's type with a block for each row; `inputs` come before k and `out`.
template <class Kernel, class... Inputs>
Status ForRows(Kernel int8,
               Kernel fp8,
               int threads,
               std::int64_t rows,
               std::int64_t k,
               const QuantisedRows& out,
               Stream stream,
               Inputs... inputs) {
  if (!Fits(k, out)) {
    return Status::kInvalidValue;
  }
  if (rows == 0) {
    return Status::kOk;
  }
  const Kernel kernel = out.type == ByteType::kInt8 ? int8 : fp8;
  return LAUNCH_KERNEL(kernel,
                       dim3(static_cast<unsigned>(rows)),
                       dim3(static_cast<unsigned>(threads)),
                       0,
                       stream,
                       inputs...,
                       static_cast<int>(k),
                       out);
}

}  // namespace

Status QuantiseRows(const float* x,
                    std::int64_t ldx,
                    std::int64_t rows,
                    std::int64_t k,
                    const QuantisedRows& out,
                    Stream stream) {
  return ForRows(&QuantiseRowsKernel<ByteType::kInt8>,
                 &QuantiseRowsKernel<ByteType::kFp8>,
                 kThreads,
                 rows,
                 k,
                 out,
                 stream,
                 x,
                 ldx);
}

Status RmsNormQuantised(float* x,
                        std::int64_t ldx,
                        const float* add,
                        std::int64_t ldadd,
                        const float* weight,
                        float eps,
                        std::int64_t rows,
                        std::int64_t k,
                        const QuantisedRows& out,
                        Stream stream) {
  return ForRows(&RmsNormQuantisedKernel<ByteType::kInt8>,
                 &RmsNormQuantisedKernel<ByteType::kFp8>,
                 kThreads,
                 rows,
                 k,
                 out,
                 stream,
                 x,
                 ldx,
                 add,
                 ldadd,
                 weight,
                 eps);
}

Status GateMulQuantised(Gate kind,
                        const float* gate,
                        const float* up,
                        std::int64_t ld,
                        std::int64_t rows,
                        std::int64_t n,
                        const QuantisedRows& out,
                        Stream stream) {
  return ForRows(GateKernel<ByteType::kInt8>(kind),
                 GateKernel<ByteType::kFp8>(kind),
                 kGateThreads,
                 rows,
                 n,
                 out,
                 stream,
                 gate,
                 up,
                 ld);
}

}  // namespace inferd::kernels::cuda
