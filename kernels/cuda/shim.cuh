// SPDX-License-Identifier: Apache-2.0
// The one header in which a kernel's two builds differ: nvcc for devices, g++ for the emulated
// device (kernels/simt). Kernels include this and nothing else of CUDA, launch with LaunchKernel,
// and declare shared memory with SHARED_ARRAY and SHARED_DYNAMIC.
#pragma once

#include "kernels/cuda/stream.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#ifdef INFERD_SIMT
#include "kernels/types.h"

#include <tuple>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace inferd::kernels::cuda {

#define DEVICE __device__ __forceinline__

inline constexpr unsigned kFullMask = 0xffffffffU;

#ifdef INFERD_SIMT

template <class... Parameters, class... Arguments>
Status LaunchNamed(const char* name,
                   void (*kernel)(Parameters...),
                   dim3 grid,
                   dim3 block,
                   std::size_t shared_bytes,
                   Stream stream,
                   Arguments... arguments) {
  const cudaError_t error = simt::CheckLaunch(
      reinterpret_cast<const void*>(kernel), name, grid, block, shared_bytes, stream);
  if (error != cudaSuccess) {
    return static_cast<Status>(error);
  }
  const std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
  return static_cast<Status>(simt::Enqueue(stream, [=] {
    simt::RunGrid(name, grid, block, shared_bytes, [&] { std::apply(kernel, values); });
  }));
}
#define LAUNCH_KERNEL(kernel, ...) \
  ::inferd::kernels::cuda::LaunchNamed(#kernel, kernel, __VA_ARGS__)

// The address of the lambda's static is what tells two variables apart.
#define SHARED_ARRAY(type, name, count)                                             \
  type(&name)[count] = *static_cast<type(*)[count]>(::inferd::simt::SharedVariable( \
      [] {                                                                          \
        static char tag;                                                            \
        return &tag;                                                                \
      }(),                                                                          \
      sizeof(type) * (count)))
#define SHARED_DYNAMIC(type, name) auto* name = static_cast<type*>(::inferd::simt::DynamicShared())

#else

template <class... Parameters, class... Arguments>
Status Launch(void (*kernel)(Parameters...),
              dim3 grid,
              dim3 block,
              std::size_t shared_bytes,
              Stream stream,
              Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return static_cast<Status>(
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}
#define LAUNCH_KERNEL(kernel, ...) ::inferd::kernels::cuda::Launch(kernel, __VA_ARGS__)
#define SHARED_ARRAY(type, name, count) __shared__ __align__(16) type name[count]
#define SHARED_DYNAMIC(type, name)                                      \
  extern __shared__ __align__(1024) unsigned char inferd_dynamic_raw[]; \
  type* name = reinterpret_cast<type*>(inferd_dynamic_raw)

#endif

/// Lets `kernel` use more than 48 KiB of dynamic shared memory.
template <class Kernel>
Status AllowShared(Kernel* kernel, std::size_t bytes) {
  return static_cast<Status>(cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

// Conversions. Values are kept as bits; arithmetic is float.
#ifdef INFERD_SIMT
inline float HalfBitsToFloat(std::uint16_t bits) { return HalfToFloat(bits); }
inline std::uint16_t FloatToHalfBits(float value) { return FloatToHalf(value); }
inline std::uint16_t FloatToBf16Bits(float value) { return FloatToBf16(value); }
inline float Fp8BitsToFloat(std::uint8_t bits) { return Fp8ToFloat(bits); }
#else
DEVICE float HalfBitsToFloat(std::uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
/// What is finite stays finite, as on the CPU.
DEVICE std::uint16_t FloatToHalfBits(float value) {
  const std::uint16_t bits = __half_as_ushort(__float2half_rn(value));
  const bool overflow = (bits & 0x7fffU) == 0x7c00U && !isinf(value);
  return overflow ? static_cast<std::uint16_t>(bits - 1) : bits;
}
DEVICE std::uint16_t FloatToBf16Bits(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
DEVICE float Fp8BitsToFloat(std::uint8_t bits) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3)));
}
#endif

DEVICE float Bf16BitsToFloat(std::uint16_t bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}
/// E4M3, round to nearest even, at most 448 in size; NaN stays NaN.
DEVICE std::uint8_t FloatToFp8Bits(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  const std::uint32_t sign = bits >> 24 & 0x80;
  const std::uint32_t size = bits & 0x7fffffff;
  std::uint32_t code;
  if (size > 0x7f800000) {
    code = 0x7f;
  } else if (size >= 0x43e00000) {  // 448
    code = 0x7e;
  } else if (size < 0x3c800000) {  // below 2^-6, denormal: the sum's last bits are the code
    code = __float_as_uint(__uint_as_float(size) + 16384.0F) - 0x46800000;
  } else {
    code = (size + 0x7ffff + (size >> 20 & 1) - 0x3c000000) >> 20;
  }
  return static_cast<std::uint8_t>(sign | code);
}
DEVICE std::uint32_t PackBf16(float low, float high) {
#ifdef INFERD_SIMT
  return FloatToBf16Bits(low) | static_cast<std::uint32_t>(FloatToBf16Bits(high)) << 16;
#else
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
#endif
}
/// Finite values of at most 65504 in size.
DEVICE std::uint32_t PackHalf(float low, float high) {
#ifdef INFERD_SIMT
  return FloatToHalfBits(low) | static_cast<std::uint32_t>(FloatToHalfBits(high)) << 16;
#else
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
#endif
}

// cp.async of 16 (past the first level) or 4 bytes; with `valid` false the target becomes zero and
// `from` is not read. Copies are waited for by the thread that issued them; others need a barrier
// too.
#ifdef INFERD_SIMT
inline void CopyAsync16(void* to,
                        const void* from,
                        bool valid,
                        simt::Location where = simt::Location::current()) {
  simt::CopyIssue(to, from, 16, valid ? 16 : 0, where);
}
inline void CopyAsync4(void* to,
                       const void* from,
                       bool valid,
                       simt::Location where = simt::Location::current()) {
  simt::CopyIssue(to, from, 4, valid ? 4 : 0, where);
}
inline void CopyCommit() { simt::CopyCommit(); }
template <int kPending>
void CopyWait() {
  simt::CopyWait(kPending);
}
#else
DEVICE unsigned SharedAddress(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
DEVICE void CopyAsync16(void* to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(to)),
               "l"(from),
               "r"(bytes)
               : "memory");
}
DEVICE void CopyAsync4(void* to, const void* from, bool valid) {
  const int bytes = valid ? 4 : 0;
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(SharedAddress(to)), "l"(from), "r"(bytes)
      : "memory");
}
DEVICE void CopyCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
DEVICE void CopyWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
#endif

/// Four 8x8 matrices of 16-bit values: lane l names row l % 8 of matrix l / 8 and receives, of each
/// matrix, row l / 4, columns 2 (l % 4) and the next (transposed: of the matrix's transpose).
/// MmaBf16 and MmaHalf: d [16, 8] += a [16, 16] b [16, 8], float sums. With g = lane / 4 and
/// t = lane % 4, lane holds
///   a[i]  row g + 8 (i % 2), columns 2 t + 8 (i / 2) and the next
///   b[i]  column g, rows 2 t + 8 i and the next
///   d[i]  row g + 8 (i / 2), column 2 t + i % 2
#ifdef INFERD_SIMT
inline void LoadMatrix(std::uint32_t (&r)[4],
                       const void* row,
                       simt::Location where = simt::Location::current()) {
  simt::LoadMatrix(r, row, false, where);
}
inline void LoadMatrixTransposed(std::uint32_t (&r)[4],
                                 const void* row,
                                 simt::Location where = simt::Location::current()) {
  simt::LoadMatrix(r, row, true, where);
}
inline void MmaBf16(float (&d)[4],
                    const std::uint32_t (&a)[4],
                    std::uint32_t b0,
                    std::uint32_t b1,
                    simt::Location where = simt::Location::current()) {
  simt::MultiplyAdd(simt::HalfKind::kBf16, d, a, b0, b1, where);
}
inline void MmaHalf(float (&d)[4],
                    const std::uint32_t (&a)[4],
                    std::uint32_t b0,
                    std::uint32_t b1,
                    simt::Location where = simt::Location::current()) {
  simt::MultiplyAdd(simt::HalfKind::kF16, d, a, b0, b1, where);
}
#else
DEVICE void LoadMatrix(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
DEVICE void LoadMatrixTransposed(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
DEVICE void MmaBf16(float (&d)[4],
                    const std::uint32_t (&a)[4],
                    std::uint32_t b0,
                    std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void MmaHalf(float (&d)[4],
                    const std::uint32_t (&a)[4],
                    std::uint32_t b0,
                    std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

}  // namespace inferd::kernels::cuda
