// SPDX-License-Identifier: Apache-2.0
// ops' CUDA device with weights whose inputs are rounded per token: what a norm, a gate, plain rows
// and rows of other ranks leave is multiplied as the scheme says.
#include "device_fixture.h"
#include "kernels/kernel_fixture.h"
#include "kernels/types.h"
#include "ops/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace inferd::ops {
namespace {

using kernels::cuda::RandomFloats;
using kernels::cuda::RelativeError;

constexpr std::int64_t kRows = 11, kN = 27, kK = 200;

class W8A8Device : public testing::TestWithParam<DType> {
 protected:
  W8A8Device() : device_(*MakeDevice(kernels::cuda::kTestDevice, 1, {})) {
    kernels::TestRandom random(21);
    codes_.resize(kN * kK);
    for (std::byte& code : codes_) {
      code = static_cast<std::byte>(random.Next() % 0x7f | (random.Next() % 2) << 7);
    }
    scales_ = RandomFloats(kN, 22, 0.01F);
    matrix_ = *device_->Pack(GetParam(), codes_, kN, kK, kK, {scales_, kK, true});
    y_ = *device_->Allocate(kRows * kN * 4, "test");
  }

  Memory Upload(const std::vector<float>& from) {
    Memory memory = *device_->Allocate(from.size() * 4, "test");
    device_->Copy(memory.data(), from.data(), from.size() * 4);
    EXPECT_TRUE(device_->Wait().ok());
    return memory;
  }

  std::unique_ptr<Activations> Rows(unsigned more) {
    return device_->NewActivations(kRows, kK, matrix_->form() | more);
  }

  std::vector<float> Multiply(const Activations& act) {
    const MatMulTask task{matrix_.get(), nullptr, y_.floats(), kN};
    device_->MatMul(act, kRows, {&task, 1});
    std::vector<float> y(kRows * kN);
    device_->Copy(y.data(), y_.data(), y.size() * 4);
    EXPECT_TRUE(device_->Wait().ok());
    return y;
  }

  float Code(std::size_t at) const {
    const auto bits = static_cast<std::uint8_t>(codes_[at]);
    return GetParam() == DType::kI8 ? static_cast<float>(static_cast<std::int8_t>(bits))
                                    : kernels::Fp8ToFloat(bits);
  }

  // The scheme: x rounded to steps of its row, times codes and scales.
  std::vector<double> Reference(const std::vector<float>& x) const {
    std::vector<double> y;
    for (std::int64_t row = 0; row < kRows; ++row) {
      const std::span<const float> values(x.data() + row * kK, kK);
      float largest = 0;
      for (const float value : values) {
        largest = std::fmax(largest, std::fabs(value));
      }
      const double step = largest / (GetParam() == DType::kI8 ? 127.0 : 448.0);
      for (std::int64_t i = 0; i < kN; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < kK; ++j) {
          sum += Rounded(values[static_cast<std::size_t>(j)] / step) *
                 Code(static_cast<std::size_t>(i * kK + j));
        }
        y.push_back(sum * step * scales_[static_cast<std::size_t>(i)]);
      }
    }
    return y;
  }

  static double Rounded(double value) {
    if (GetParam() == DType::kI8) {
      return std::nearbyint(value);
    }
    const int exponent = std::max(std::ilogb(value == 0 ? 1e-30 : value), -6);
    const double unit = std::ldexp(1.0, exponent - 3);  // three bits of mantissa
    return std::clamp(std::nearbyint(value / unit) * unit, -448.0, 448.0);
  }

  std::unique_ptr<Device> device_;
  std::vector<std::byte> codes_;
  std::vector<float> scales_;
  std::unique_ptr<PackedMatrix> matrix_;
  Memory y_;
};

TEST_P(W8A8Device, ProductsAreThoseOfTheScheme) {
  const auto x = RandomFloats(kRows * kK, 23, 2);
  const Memory dx = Upload(x);
  const auto act = Rows(0);
  device_->Quantize(dx.floats(), kK, kRows, act.get());
  // A value that lies between two codes may be rounded the other way in float than in double.
  EXPECT_LT(RelativeError(Multiply(*act), Reference(x)), 2e-3);
}

TEST_P(W8A8Device, NormAndGateLeaveWhatTheyLeaveInFloats) {
  const Memory x = Upload(RandomFloats(kRows * kK, 24)), add = Upload(RandomFloats(kRows * kK, 25));
  const Memory weight = Upload(RandomFloats(kK, 26)), y = Upload(std::vector<float>(kRows * kK));
  const auto act = Rows(0), want = Rows(0);
  device_->RmsNormFloat(x.floats(), weight.floats(), 1e-5F, kRows, kK, y.floats());
  device_->Quantize(y.floats(), kK, kRows, want.get());
  const auto norm = Multiply(*want);
  device_->RmsNorm(x.floats(), weight.floats(), 1e-5F, kRows, kK, act.get());
  EXPECT_EQ(Multiply(*act), norm);

  const Memory x2 = Upload(RandomFloats(kRows * kK, 24));
  device_->AddRmsNormFloat({x2.floats(), add.floats(), weight.floats(), 1e-5F, kRows, kK},
                           y.floats());
  device_->Quantize(y.floats(), kK, kRows, want.get());
  const auto sum = Multiply(*want);
  EXPECT_NE(sum, norm);
  device_->AddRmsNorm({x.floats(), add.floats(), weight.floats(), 1e-5F, kRows, kK}, act.get());
  EXPECT_EQ(Multiply(*act), sum);

  const auto floats = device_->NewActivations(kRows, kK, kActFloat);
  device_->GateMul(GateKind::kSilu, x.floats(), add.floats(), kK, kRows, kK, floats.get());
  floats->CopyOut(kRows, y.data());
  device_->Quantize(y.floats(), kK, kRows, want.get());
  const auto gated = Multiply(*want);
  device_->GateMul(GateKind::kSilu, x.floats(), add.floats(), kK, kRows, kK, act.get());
  EXPECT_EQ(Multiply(*act), gated);
}

// Two ranks' columns, put together: the rows' scales are those of whole rows, and rows that were
// there before leave nothing behind.
TEST_P(W8A8Device, RowsOfOtherRanksAreQuantisedWhole) {
  const Memory x = Upload(RandomFloats(kRows * kK, 27)),
               other = Upload(RandomFloats(kRows * kK, 28));
  const auto want = Rows(0), whole = Rows(kActCarried);
  device_->Quantize(x.floats(), kK, kRows, want.get());
  device_->Quantize(other.floats(), kK, kRows, whole.get());
  const auto before = Multiply(*whole);
  constexpr std::int64_t kFirst = 64;
  for (const auto& [first, columns] :
       {std::pair(std::int64_t{0}, kFirst), std::pair(kFirst, kK - kFirst)}) {
    const auto part = device_->NewActivations(kRows, columns, matrix_->form() | kActCarried);
    device_->Quantize(x.floats() + first, kK, kRows, part.get());
    const Memory sent = *device_->Allocate(part->ColumnBytes(columns) * kRows, "test");
    part->CopyOut(kRows, sent.data());
    whole->CopyIn(kRows, first, columns, sent.data());
    ASSERT_TRUE(device_->Wait().ok());
  }
  const auto y = Multiply(*whole);
  EXPECT_NE(y, before);
  EXPECT_EQ(y, Multiply(*want));
}

// Floats that came through the devices' memory: the bytes of the rows before are not theirs.
TEST_P(W8A8Device, FloatsThatAreFilledAreQuantised) {
  const Memory x = Upload(RandomFloats(kRows * kK, 29)),
               other = Upload(RandomFloats(kRows * kK, 30));
  const auto want = Rows(0), whole = Rows(kActCarried), bytes_only = Rows(0);
  EXPECT_EQ(bytes_only->FloatsToFill(), nullptr);
  device_->Quantize(x.floats(), kK, kRows, want.get());
  device_->Quantize(other.floats(), kK, kRows, whole.get());
  const auto before = Multiply(*whole);
  ASSERT_NE(whole->Floats(), nullptr);
  device_->Copy(whole->FloatsToFill(), x.data(), x.bytes());
  const auto y = Multiply(*whole);
  EXPECT_NE(y, before);
  EXPECT_EQ(y, Multiply(*want));
}

INSTANTIATE_TEST_SUITE_P(Types,
                         W8A8Device,
                         testing::Values(DType::kI8, DType::kF8E4M3),
                         [](const testing::TestParamInfo<DType>& type) {
                           return type.param == DType::kI8 ? "Int8" : "Fp8";
                         });

}  // namespace
}  // namespace inferd::ops
