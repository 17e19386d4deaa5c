// SPDX-License-Identifier: Apache-2.0
// A product for cuBLASLt with the sums that it must give.
#pragma once

#include "base/dtype.h"
#include "device_fixture.h"
#include "kernels/matmul/inputs_cuda.h"
#include "kernels/types.h"
#include "ops/cuda/cublaslt.h"

#include <cmath>
#include <memory>
#include <vector>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

using kernels::cuda::DeviceArray;
using kernels::cuda::RandomFloats;
using kernels::cuda::Status;

/// The library with its workspace; not `ok` where there is none on this machine.
struct TestLibrary {
  DeviceArray<float> workspace{CublasLt::kWorkspaceBytes / sizeof(float)};
  std::unique_ptr<CublasLt> lt;

  TestLibrary() {
    if (const Result<CublasLtApi> api = LoadCublasLt(); api.ok()) {
      auto made = CublasLt::Make(*api, reinterpret_cast<std::byte*>(workspace.get()));
      EXPECT_TRUE(made.ok()) << made.error().message();
      lt = made.ok() ? *std::move(made) : nullptr;
    }
  }
  bool ok() const { return lt != nullptr; }
};

/// W [n, k] as `type`, x [m, k] as terms of it, y [m, ldy].
class TestProduct {
 public:
  TestProduct(DType type, std::int64_t m, std::int64_t n, std::int64_t k, int terms, bool bias)
      : type_(type),
        stored_(Store(type, RandomFloats(static_cast<std::size_t>(n * k), 1))),
        w_(stored_),
        wide_w_(Widen(type, stored_)),
        x_(RandomFloats(static_cast<std::size_t>(m * k), 2)),
        bias_(bias ? RandomFloats(static_cast<std::size_t>(n), 3) : std::vector<float>()),
        device_bias_(bias ? bias_ : std::vector<float>(1)),
        y_(std::vector<float>(static_cast<std::size_t>(m * (n + kGap)), kUntouched)) {
    product.type = type;
    product.m = m;
    product.n = n;
    product.k = k;
    product.w = w_.get();
    product.terms = terms;
    product.bias = bias ? device_bias_.get() : nullptr;
    product.y = y_.get();
    product.ldy = n + kGap;
    if (type == DType::kF32 || type == DType::kF8E4M3) {
      if (type == DType::kF8E4M3) {
        x_ = Widen(type, Store(type, x_));
      }
      inputs_ = std::make_unique<DeviceArray<std::byte>>(Store(type, x_));
      product.ldx = k;
    } else {
      product.ldx = (k + 7) / 8 * 8;
      product.second_alpha = type == DType::kF16 ? 1 / kernels::cuda::kSecondHalf : 1;
      product.term_stride = (m * product.ldx + 127) / 128 * 128;
      inputs_ = std::make_unique<DeviceArray<std::byte>>(
          static_cast<std::size_t>(2 * terms * product.term_stride));
      const DeviceArray<float> x(x_);
      EXPECT_OK(kernels::cuda::SplitRows(type,
                                         x.get(),
                                         k,
                                         m,
                                         k,
                                         1,
                                         terms,
                                         reinterpret_cast<std::uint16_t*>(inputs_->get()),
                                         product.ldx,
                                         product.term_stride,
                                         nullptr));
      (void)inputs_->Download();  // done before x goes
    }
    product.x = inputs_->get();
  }

  /// Largest error in units of sum |w x|; infinite where y was written outside of the product.
  double Error(double scale = 1) const {
    const std::vector<float> y = y_.Download();
    double worst = 0;
    for (std::int64_t row = 0; row < product.m; ++row) {
      for (std::int64_t i = 0; i < product.ldy; ++i) {
        const float got = y[static_cast<std::size_t>(row * product.ldy + i)];
        if (i >= product.n) {
          worst = got == kUntouched ? worst : HUGE_VAL;
          continue;
        }
        double sum = 0, size = 1e-20;
        for (std::int64_t j = 0; j < product.k; ++j) {
          const double term =
              scale * static_cast<double>(wide_w_[static_cast<std::size_t>(i * product.k + j)]) *
              static_cast<double>(x_[static_cast<std::size_t>(row * product.k + j)]);
          sum += term;
          size += std::fabs(term);
        }
        const double want =
            sum + (bias_.empty() ? 0 : static_cast<double>(bias_[static_cast<std::size_t>(i)]));
        const double error = std::fabs(static_cast<double>(got) - want) / (size + std::fabs(want));
        worst = std::isfinite(got) ? std::max(worst, error) : HUGE_VAL;
      }
    }
    return worst;
  }

  LtProduct product;

 private:
  static constexpr std::int64_t kGap = 16;
  static constexpr float kUntouched = 7.5F;

  static std::vector<std::byte> Store(DType type, const std::vector<float>& values) {
    const auto size = static_cast<std::size_t>(BlockBytes(type));
    std::vector<std::byte> bytes(values.size() * size);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint32_t bits = type == DType::kF32    ? kernels::FloatToBits(values[i])
                                 : type == DType::kBF16 ? kernels::FloatToBf16(values[i])
                                 : type == DType::kF16  ? kernels::FloatToHalf(values[i])
                                                        : Fp8Bits(values[i]);
      std::memcpy(bytes.data() + i * size, &bits, size);
    }
    return bytes;
  }
  static std::vector<float> Widen(DType type, const std::vector<std::byte>& bytes) {
    const auto size = static_cast<std::size_t>(BlockBytes(type));
    std::vector<float> values(bytes.size() / size);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, bytes.data() + i * size, size);
      const auto half = static_cast<std::uint16_t>(bits);
      values[i] = type == DType::kF32    ? kernels::BitsToFloat(bits)
                  : type == DType::kBF16 ? kernels::Bf16ToFloat(half)
                  : type == DType::kF16  ? kernels::HalfToFloat(half)
                                         : kernels::Fp8ToFloat(static_cast<std::uint8_t>(bits));
    }
    return values;
  }
  // The nearest of the 127 sizes.
  static std::uint8_t Fp8Bits(float value) {
    std::uint8_t best = 0;
    for (std::uint8_t code = 0; code < 0x7f; ++code) {
      if (std::fabs(kernels::Fp8ToFloat(code) - std::fabs(value)) <
          std::fabs(kernels::Fp8ToFloat(best) - std::fabs(value))) {
        best = code;
      }
    }
    return static_cast<std::uint8_t>(best | (value < 0 ? 0x80U : 0U));
  }

  DType type_;
  std::vector<std::byte> stored_;
  DeviceArray<std::byte> w_;
  std::vector<float> wide_w_;
  std::vector<float> x_;
  std::vector<float> bias_;
  DeviceArray<float> device_bias_;
  std::unique_ptr<DeviceArray<std::byte>> inputs_;
  DeviceArray<float> y_;
};

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
