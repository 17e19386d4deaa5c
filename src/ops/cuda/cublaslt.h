// SPDX-License-Identifier: Apache-2.0
// Products by cuBLASLt. For each shape the library is asked once which of its algorithms to take;
// what it answers is kept, with the descriptions that a call needs. Used by the device for products
// of many rows, and by kernel_sweep.
#pragma once

#include "base/dtype.h"
#include "ops/cuda/cublaslt_api.h"

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

/// y [m, n] = alpha * sum over the terms t of x[t] [m, k] W^T (+ bias), with sums in float; the
/// second term counts second_alpha for each of its own.
struct LtProduct {
  DType type = DType::kBF16;  // of W and x: F32, F16, BF16 or F8_E4M3
  std::int64_t m = 0, n = 0, k = 0;
  const void* w = nullptr;  // [n, k], rows without a gap
  const void* x = nullptr;  // terms * [m, k]; rows ldx values apart, terms term_stride values
  std::int64_t ldx = 0;
  int terms = 1;
  std::int64_t term_stride = 0;
  float alpha = 1;
  float second_alpha = 1;
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;
  std::int64_t ldy = 0;
  /// F8_E4M3 only, and device memory: values of W and x are multiplied by these; null: 1.
  const float* w_scale = nullptr;
  const float* x_scale = nullptr;
  /// F8_E4M3 only: sums within a tile may be kept with fewer bits.
  bool fast_sums = false;
};

/// Owned and called by one thread, with the device of Make current.
class CublasLt {
 public:
  /// What the library may use of the workspace; NVIDIA's advice for its newest devices.
  static constexpr std::size_t kWorkspaceBytes = 32U << 20U;
  /// Plans that are kept; beyond, the one that was not used for the longest goes.
  static constexpr std::size_t kMaxPlans = 512;

  /// For the calling thread's device. `workspace` is device memory of kWorkspaceBytes, aligned to
  /// 256, that outlives the object and is used by products of one stream only.
  static Result<std::unique_ptr<CublasLt>> Make(const CublasLtApi& api, std::byte* workspace);

  std::string version() const { return CublasLtVersionText(api_.version); }
  std::size_t plans() const { return plans_.size(); }

  /// Queues the product on `stream`. False: it has done nothing, since the library has no algorithm
  /// for this shape, or it would have to look for one and may_plan forbids it (a stream that is
  /// captured). kInternal names the call and the status.
  Result<bool> Multiply(const LtProduct& product, kernels::cuda::Stream stream, bool may_plan);

  /// Rows that share a plan are rounded up to the same number.
  static std::int64_t RoundRows(std::int64_t rows);

 private:
  // What an algorithm is chosen for, but for the exact rows.
  struct Key {
    DType type = DType::kF32;
    std::int64_t n = 0, k = 0, rows = 0;  // rows as RoundRows gives them
    std::int64_t ldx = 0, ldy = 0;
    std::array<std::uint32_t, 3> alignment = {};  // of w, x, y
    bool bias = false;
    bool fast_sums = false;
    auto operator<=>(const Key&) const = default;
  };
  using Owned = std::unique_ptr<void, CublasStatus (*)(void*)>;
  struct Plan {
    Owned product, w, x, y;
    std::int64_t rows = 0;  // that x and y are described with
    bool found = false;     // there is an algorithm
    LtAlgorithm algorithm = {};
    std::size_t workspace_bytes = 0;
    std::uint64_t used = 0;
  };

  CublasLt(const CublasLtApi& api, LtHandle handle, std::byte* workspace);
  Key KeyOf(const LtProduct& product, bool bias) const;
  /// The plan for this product, ready for its rows; null: none, see Multiply.
  Result<Plan*> PlanFor(const LtProduct& product, const Key& key, bool may_plan);
  Result<Plan> Describe(const LtProduct& product, const Key& key) const;
  Result<> Choose(const Key& key, Plan* plan) const;
  /// Describes x and y with m rows.
  Result<> SetRows(std::int64_t m, Plan* plan) const;
  Result<> SetPointers(const LtProduct& product, const Key& key, const Plan& plan) const;
  Result<> Check(CublasStatus status, const char* call) const;

  const CublasLtApi api_;
  const Owned handle_;
  std::byte* const workspace_;
  std::map<Key, Plan> plans_;
  std::uint64_t uses_ = 0;
};

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
