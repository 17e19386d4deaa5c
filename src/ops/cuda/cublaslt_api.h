// SPDX-License-Identifier: Apache-2.0
// The part of cuBLASLt's public C interface that we use, found by name when a device first has
// products for it: inferd has no link dependency on the library and starts without it. Numbers and
// layouts are fixed by its binary interface (docs.nvidia.com/cuda/cublas, "Using the cuBLASLt
// API").
#pragma once

#include "inferd/result.h"
#include "kernels/cuda/stream.h"
#include "tensor/device_queue.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

enum class CublasStatus : int {
  kSuccess = 0,
  kInvalidValue = 7,
  kNotSupported = 15,
};

// cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t.
using LtHandle = void*;
using LtProductDesc = void*;
using LtLayout = void*;
using LtPreference = void*;

/// cublasLtMatmulAlgo_t
struct LtAlgorithm {
  std::uint64_t data[8];
};
/// cublasLtMatmulHeuristicResult_t
struct LtChoice {
  LtAlgorithm algorithm;
  std::size_t workspace_bytes;
  CublasStatus state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(LtChoice) == 96);

/// cudaDataType
enum LtType : std::int32_t { kLtF32 = 0, kLtF16 = 2, kLtBf16 = 14, kLtE4M3 = 28 };
/// cublasLtMatmulDescAttributes_t
enum LtProductAttribute : int {
  kLtTransposeA = 3,   // int32: cublasOperation_t
  kLtEpilogue = 7,     // uint32
  kLtBiasPointer = 8,  // const void*
  kLtScaleOfA = 17,    // const void*
  kLtScaleOfB = 18,    // const void*
  kLtFastSums = 25,    // int8
};
/// cublasLtMatrixLayoutAttribute_t
enum LtLayoutAttribute : int { kLtColumns = 3 };  // uint64
/// cublasLtMatmulPreferenceAttributes_t
enum LtPreferenceAttribute : int {
  kLtMostWorkspace = 1,  // uint64
  kLtAlignmentOfA = 5,   // uint32, as those of B, C and D
  kLtAlignmentOfB = 6,
  kLtAlignmentOfC = 7,
  kLtAlignmentOfD = 8,
};
inline constexpr int kLtCompute32F = 68;
inline constexpr std::int32_t kLtTranspose = 1;
inline constexpr std::uint32_t kLtEpilogueBias = 4;
/// The oldest whose interface is known to be this one.
inline constexpr std::size_t kOldestCublasLt = 120'000;

/// "13.0.2"
std::string CublasLtVersionText(std::size_t version);

/// Immutable after loading; any thread.
struct CublasLtApi {
  std::size_t version = 0;
  const char* (*status_name)(CublasStatus) = nullptr;
  CublasStatus (*create)(LtHandle*) = nullptr;
  CublasStatus (*destroy)(LtHandle) = nullptr;
  CublasStatus (*product_create)(LtProductDesc*, int compute, int scale_type) = nullptr;
  CublasStatus (*product_destroy)(LtProductDesc) = nullptr;
  CublasStatus (*product_set)(LtProductDesc,
                              int attribute,
                              const void* value,
                              std::size_t bytes) = nullptr;
  CublasStatus (*layout_create)(
      LtLayout*, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t ld) = nullptr;
  CublasStatus (*layout_destroy)(LtLayout) = nullptr;
  CublasStatus (*layout_set)(LtLayout,
                             int attribute,
                             const void* value,
                             std::size_t bytes) = nullptr;
  CublasStatus (*preference_create)(LtPreference*) = nullptr;
  CublasStatus (*preference_destroy)(LtPreference) = nullptr;
  CublasStatus (*preference_set)(LtPreference,
                                 int attribute,
                                 const void* value,
                                 std::size_t bytes) = nullptr;
  CublasStatus (*choose)(LtHandle,
                         LtProductDesc,
                         LtLayout a,
                         LtLayout b,
                         LtLayout c,
                         LtLayout d,
                         LtPreference,
                         int asked,
                         LtChoice* choices,
                         int* found) = nullptr;
  CublasStatus (*check)(LtHandle,
                        LtProductDesc,
                        LtLayout a,
                        LtLayout b,
                        LtLayout c,
                        LtLayout d,
                        const LtAlgorithm*,
                        LtChoice* result) = nullptr;
  CublasStatus (*multiply)(LtHandle,
                           LtProductDesc,
                           const void* alpha,
                           const void* a,
                           LtLayout,
                           const void* b,
                           LtLayout,
                           const void* beta,
                           const void* c,
                           LtLayout,
                           void* d,
                           LtLayout,
                           const LtAlgorithm*,
                           void* workspace,
                           std::size_t workspace_bytes,
                           kernels::cuda::Stream) = nullptr;
};

/// From a library that `find` looks into, called `name` in errors: kUnavailable when it is older
/// than kOldestCublasLt or has not all functions.
Result<CublasLtApi> FindCublasLt(const tensor::FindFunction& find, const std::string& name);

/// The first of `libraries` that can be opened; it stays loaded. kUnavailable: none, and what to
/// do.
Result<CublasLtApi> OpenCublasLt(std::span<const char* const> libraries);

/// The host's cuBLASLt 13 or 12; on the emulated device the emulated one.
Result<CublasLtApi> LoadCublasLt();

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
