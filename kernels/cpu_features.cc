// SPDX-License-Identifier: Apache-2.0
// What the CPU and the operating system offer; gcc's builtin checks XGETBV too.
#include "kernels/kernels.h"

namespace inferd::kernels {

bool CpuHasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}

bool CpuHasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("gfni");
}

bool CpuHasAvx512Bf16() { return CpuHasAvx512() && __builtin_cpu_supports("avx512bf16"); }

bool CpuHasFastBf16() { return CpuHasAvx512Bf16() && __builtin_cpu_is("amd"); }

bool CpuStreamsByItself() { return __builtin_cpu_is("amd"); }

}  // namespace inferd::kernels
