// SPDX-License-Identifier: Apache-2.0
#include "ops/packed_bytes.h"

#include "kernels/pack/pack.h"

namespace inferd::ops {
namespace {

constexpr std::int64_t kHalfBytes = 2;

std::int64_t StoredBytes(DType type, std::int64_t n, std::int64_t k) {
  return n * (k / BlockElements(type) * BlockBytes(type));
}

// The types without a product on GPUs (kernels::cuda::HasMatMul) become 16-bit floats.
bool IsWidenedOnGpu(DType type) {
  return type == DType::kQ2_K || type == DType::kQ3_K || type == DType::kIQ4_NL ||
         type == DType::kIQ4_XS;
}

}  // namespace

std::int64_t PackedBytes(DeviceClass device, DType type, std::int64_t n, std::int64_t k) {
  if (device == DeviceClass::kGpu) {
    return IsWidenedOnGpu(type) ? n * k * kHalfBytes : StoredBytes(type, n, k);
  }
  const std::size_t panel = kernels::PanelBytes(kernels::FormOf(type), k);
  return kernels::NumPanels(n) * static_cast<std::int64_t>(panel);
}

std::int64_t TableBytes(DeviceClass device, DType type, std::int64_t n, std::int64_t k) {
  const bool plain = type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
  return device == DeviceClass::kGpu && !plain ? n * k * kHalfBytes : StoredBytes(type, n, k);
}

}  // namespace inferd::ops
