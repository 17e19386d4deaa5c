// SPDX-License-Identifier: Apache-2.0
// Tensor-core products of bytes. MmaInt8 and MmaFp8: d [16, 8] += a [16, 32] b [32, 8]. With g =
// lane / 4 and t = lane % 4, lane holds
//   a[i]  row g + 8 (i % 2), columns 4 t + 16 (i / 2) and the next three
//   b[i]  column g, rows 4 t + 16 i and the next three
//   d[i]  row g + 8 (i / 2), column 2 t + i % 2
#pragma once

#include "kernels/cuda/shim.cuh"

#ifdef INFERD_SIMT
#include "kernels/simt/tensor_core_bytes.h"
#endif

namespace inferd::kernels::cuda {

/// Bytes `first` and `first` + 1 of a word of E4M3, each as a half of 2^-8 times its value:
/// exponent and mantissa, denormals too, stand in a half as they are, but for the bias of the
/// exponent.
DEVICE std::uint32_t Fp8PairToHalf(std::uint32_t word, int first) {
  const std::uint32_t bytes = word >> (8 * first);
  const std::uint32_t apart = (bytes & 0xff) | (bytes & 0xff00) << 8;
  return (apart & 0x00800080U) << 8 | (apart & 0x007f007fU) << 7;
}

/// MmaFp8 where tensor cores take no E4M3 (before sm_89): as halves, which is exact. The columns of
/// a and the rows of b come in another order, the same in both.
DEVICE void MmaFp8AsHalf(float (&d)[4],
                         const std::uint32_t (&a)[4],
                         std::uint32_t b0,
                         std::uint32_t b1) {
  float part[4] = {0, 0, 0, 0};
  for (int step = 0; step < 2; ++step) {
    const std::uint32_t low = a[2 * step];
    const std::uint32_t high = a[2 * step + 1];
    const std::uint32_t b = step == 0 ? b0 : b1;
    const std::uint32_t halves[4] = {Fp8PairToHalf(low, 0),
                                     Fp8PairToHalf(high, 0),
                                     Fp8PairToHalf(low, 2),
                                     Fp8PairToHalf(high, 2)};
    MmaHalf(part, halves, Fp8PairToHalf(b, 0), Fp8PairToHalf(b, 2));
  }
  for (int i = 0; i < 4; ++i) {
    d[i] = fmaf(part[i], 0x1p16F, d[i]);
  }
}

#ifdef INFERD_SIMT
inline void MmaInt8(int (&d)[4],
                    const std::uint32_t (&a)[4],
                    std::uint32_t b0,
                    std::uint32_t b1,
                    simt::Location where = simt::Location::current()) {
  simt::MultiplyAddInt8(d, a, b0, b1, where);
}
inline void MmaFp8(float (&d)[4],
                   const std::uint32_t (&a)[4],
                   std::uint32_t b0,
                   std::uint32_t b1,
                   simt::Location where = simt::Location::current()) {
  simt::MultiplyAddFp8(d, a, b0, b1, where);
}
#else
DEVICE void MmaInt8(int (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void MmaFp8(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  MmaFp8AsHalf(d, a, b0, b1);
#endif
}
#endif

}  // namespace inferd::kernels::cuda
