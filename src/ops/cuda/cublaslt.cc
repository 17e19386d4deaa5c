// SPDX-License-Identifier: Apache-2.0
// The library's matrices are stored by columns: y [m, n] by rows is its D [n, m], made of A = W
// [k, n], transposed, and B = x [k, m].
#include "ops/cuda/cublaslt.h"

#include "base/check.h"
#include "base/error.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {
namespace {

// The best that an address promises; the library's algorithms ask for no more.
std::uint32_t AlignmentOf(const void* pointer) {
  constexpr std::uintptr_t kMost = 256;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | kMost;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

LtType TypeOf(DType type) {
  switch (type) {
    case DType::kF16:
      return kLtF16;
    case DType::kBF16:
      return kLtBf16;
    case DType::kF8E4M3:
      return kLtE4M3;
    default:
      INFERD_CHECK(type == DType::kF32);
      return kLtF32;
  }
}

const char* NameOf(const CublasLtApi& api, CublasStatus status) {
  const char* const name = api.status_name(status);
  return name != nullptr ? name : "an unknown status";
}

}  // namespace

Result<std::unique_ptr<CublasLt>> CublasLt::Make(const CublasLtApi& api, std::byte* workspace) {
  LtHandle handle = nullptr;
  if (const CublasStatus status = api.create(&handle); status != CublasStatus::kSuccess) {
    return Unavailable(
        "cuBLASLt {} does not start: {}", CublasLtVersionText(api.version), NameOf(api, status));
  }
  return std::unique_ptr<CublasLt>(new CublasLt(api, handle, workspace));
}

CublasLt::CublasLt(const CublasLtApi& api, LtHandle handle, std::byte* workspace)
    : api_(api), handle_(handle, api.destroy), workspace_(workspace) {}

Result<> CublasLt::Check(CublasStatus status, const char* call) const {
  if (status == CublasStatus::kSuccess) {
    return {};
  }
  return Internal("{} of cuBLASLt {}: {} ({})",
                  call,
                  version(),
                  NameOf(api_, status),
                  static_cast<int>(status));
}

std::int64_t CublasLt::RoundRows(std::int64_t rows) {
  constexpr std::int64_t kFine = 512, kFineStep = 64, kCoarse = 4096, kCoarseStep = 512;
  const auto up = [rows](std::int64_t step) { return (rows + step - 1) / step * step; };
  if (rows <= kFine) {
    return up(kFineStep);
  }
  return rows <= kCoarse
             ? up(kCoarseStep)
             : static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
}

CublasLt::Key CublasLt::KeyOf(const LtProduct& product, bool bias) const {
  std::uint32_t x = AlignmentOf(product.x);
  if (product.terms > 1) {
    const auto value = static_cast<std::size_t>(BlockBytes(product.type));
    x = std::min(x,
                 AlignmentOf(static_cast<const std::byte*>(product.x) +
                             static_cast<std::size_t>(product.term_stride) * value));
  }
  return {product.type,
          product.n,
          product.k,
          RoundRows(product.m),
          product.ldx,
          product.ldy,
          {AlignmentOf(product.w), x, AlignmentOf(product.y)},
          bias,
          product.fast_sums};
}

Result<CublasLt::Plan> CublasLt::Describe(const LtProduct& product, const Key& key) const {
  const LtType type = TypeOf(key.type);
  LtProductDesc desc = nullptr;
  INFERD_TRY(Check(api_.product_create(&desc, kLtCompute32F, kLtF32), "cublasLtMatmulDescCreate"));
  Plan plan{Owned(desc, api_.product_destroy),
            Owned(nullptr, api_.layout_destroy),
            Owned(nullptr, api_.layout_destroy),
            Owned(nullptr, api_.layout_destroy)};
  const auto set = [&](LtProductAttribute attribute, const auto& value) {
    return Check(api_.product_set(desc, attribute, &value, sizeof(value)),
                 "cublasLtMatmulDescSetAttribute");
  };
  INFERD_TRY(set(kLtTransposeA, kLtTranspose));
  if (key.bias) {
    INFERD_TRY(set(kLtEpilogue, kLtEpilogueBias));
  }
  if (key.type == DType::kF8E4M3) {
    INFERD_TRY(set(kLtFastSums, static_cast<std::int8_t>(key.fast_sums ? 1 : 0)));
  }
  INFERD_TRY(SetPointers(product, key, plan));
  const auto layout = [&](LtType of, std::int64_t rows, std::int64_t columns, std::int64_t ld) {
    LtLayout made = nullptr;
    Result<> done = Check(
        api_.layout_create(
            &made, of, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), ld),
        "cublasLtMatrixLayoutCreate");
    return done.ok() ? Result<Owned>(Owned(made, api_.layout_destroy))
                     : Result<Owned>(done.error());
  };
  plan.rows = key.rows;
  INFERD_ASSIGN(plan.w, layout(type, key.k, key.n, key.k));
  INFERD_ASSIGN(plan.x, layout(type, key.k, key.rows, key.ldx));
  INFERD_ASSIGN(plan.y, layout(kLtF32, key.n, key.rows, key.ldy));
  return plan;
}

Result<> CublasLt::Choose(const Key& key, Plan* plan) const {
  LtPreference preference = nullptr;
  INFERD_TRY(Check(api_.preference_create(&preference), "cublasLtMatmulPreferenceCreate"));
  const Owned own(preference, api_.preference_destroy);
  const auto set = [&](LtPreferenceAttribute attribute, const auto& value) {
    return Check(api_.preference_set(preference, attribute, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  INFERD_TRY(set(kLtMostWorkspace, std::uint64_t{kWorkspaceBytes}));
  INFERD_TRY(set(kLtAlignmentOfA, key.alignment[0]));
  INFERD_TRY(set(kLtAlignmentOfB, key.alignment[1]));
  INFERD_TRY(set(kLtAlignmentOfC, key.alignment[2]));
  INFERD_TRY(set(kLtAlignmentOfD, key.alignment[2]));
  LtChoice choice = {};
  int found = 0;
  const CublasStatus status = api_.choose(handle_.get(),
                                          plan->product.get(),
                                          plan->w.get(),
                                          plan->x.get(),
                                          plan->y.get(),
                                          plan->y.get(),
                                          preference,
                                          1,
                                          &choice,
                                          &found);
  plan->found = false;
  if (status == CublasStatus::kNotSupported) {
    return {};
  }
  INFERD_TRY(Check(status, "cublasLtMatmulAlgoGetHeuristic"));
  plan->found = found > 0 && choice.state == CublasStatus::kSuccess &&
                choice.workspace_bytes <= kWorkspaceBytes;
  plan->algorithm = choice.algorithm;
  plan->workspace_bytes = choice.workspace_bytes;
  return {};
}

Result<> CublasLt::SetRows(std::int64_t m, Plan* plan) const {
  const auto columns = static_cast<std::uint64_t>(m);
  for (const Owned* layout : {&plan->x, &plan->y}) {
    INFERD_TRY(Check(api_.layout_set(layout->get(), kLtColumns, &columns, sizeof(columns)),
                     "cublasLtMatrixLayoutSetAttribute"));
  }
  plan->rows = m;
  return {};
}

Result<> CublasLt::SetPointers(const LtProduct& product, const Key& key, const Plan& plan) const {
  const auto set = [&](LtProductAttribute attribute, const float* pointer) {
    return Check(api_.product_set(plan.product.get(), attribute, &pointer, sizeof(pointer)),
                 "cublasLtMatmulDescSetAttribute");
  };
  if (key.bias) {
    INFERD_TRY(set(kLtBiasPointer, product.bias));
  }
  if (key.type == DType::kF8E4M3) {
    INFERD_TRY(set(kLtScaleOfA, product.w_scale));
    INFERD_TRY(set(kLtScaleOfB, product.x_scale));
  }
  return {};
}

Result<CublasLt::Plan*> CublasLt::PlanFor(const LtProduct& product, const Key& key, bool may_plan) {
  auto place = plans_.find(key);
  if (place == plans_.end()) {
    if (!may_plan) {
      return nullptr;
    }
    INFERD_ASSIGN(Plan made, Describe(product, key));
    INFERD_TRY(Choose(key, &made));
    if (plans_.size() == kMaxPlans) {
      plans_.erase(std::min_element(plans_.begin(), plans_.end(), [](const auto& a, const auto& b) {
        return a.second.used < b.second.used;
      }));
    }
    place = plans_.emplace(key, std::move(made)).first;
  }
  Plan& plan = place->second;
  plan.used = ++uses_;
  if (plan.found && plan.rows != product.m) {
    // The algorithm was chosen for other rows: it is asked whether it takes these as well.
    INFERD_TRY(SetRows(product.m, &plan));
    LtChoice result = {};
    const CublasStatus status = api_.check(handle_.get(),
                                           plan.product.get(),
                                           plan.w.get(),
                                           plan.x.get(),
                                           plan.y.get(),
                                           plan.y.get(),
                                           &plan.algorithm,
                                           &result);
    if (status == CublasStatus::kSuccess && result.workspace_bytes <= kWorkspaceBytes) {
      plan.workspace_bytes = result.workspace_bytes;
    } else if (may_plan) {
      INFERD_TRY(Choose(key, &plan));
    } else {
      plan.rows = 0;  // of no product: the next one asks again
      return nullptr;
    }
  }
  return plan.found ? &plan : nullptr;
}

Result<bool> CublasLt::Multiply(const LtProduct& product,
                                kernels::cuda::Stream stream,
                                bool may_plan) {
  // All terms but the last one are sums without the bias, the small ones first.
  const Key last_key = KeyOf(product, product.bias != nullptr);
  INFERD_ASSIGN(const Plan* const last, PlanFor(product, last_key, may_plan));
  const Plan* others = last;
  if (last != nullptr && product.terms > 1 && product.bias != nullptr) {
    INFERD_ASSIGN(others, PlanFor(product, KeyOf(product, false), may_plan));
  }
  if (last == nullptr || others == nullptr) {
    return false;
  }
  INFERD_TRY(SetPointers(product, last_key, *last));
  const auto value = static_cast<std::int64_t>(BlockBytes(product.type));
  for (int term = product.terms - 1; term >= 0; --term) {
    const Plan& plan = term == 0 ? *last : *others;
    const float alpha = term == 0 ? product.alpha : product.alpha * product.second_alpha;
    const float beta = term == product.terms - 1 ? 0.0F : 1.0F;
    INFERD_TRY(Check(
        api_.multiply(handle_.get(),
                      plan.product.get(),
                      &alpha,
                      product.w,
                      plan.w.get(),
                      static_cast<const std::byte*>(product.x) + term * product.term_stride * value,
                      plan.x.get(),
                      &beta,
                      product.y,
                      plan.y.get(),
                      product.y,
                      plan.y.get(),
                      &plan.algorithm,
                      workspace_,
                      plan.workspace_bytes,
                      stream),
        "cublasLtMatmul"));
  }
  return true;
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
