// SPDX-License-Identifier: Apache-2.0
// Row kernels: norm, quantiser, gate, add; odd sizes, zero rows, unaligned rows.
#include "kernel_fixture.h"
#include "tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace inferd::kernels {
namespace {

constexpr std::int64_t kSizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 896, 4864, 5003};

class Rows : public testing::TestWithParam<const KernelTable*> {
 protected:
  // k values one float past an aligned address.
  static std::vector<float> Values(std::int64_t k, std::uint64_t seed, float scale = 1) {
    TestRandom random(seed);
    std::vector<float> x(static_cast<std::size_t>(k) + 1);
    for (float& v : x) {
      v = scale * random.Normal();
    }
    return x;
  }
};

TEST_P(Rows, RmsNormMatchesDoubleAndTheScalarBits) {
  for (const std::int64_t k : kSizes) {
    const std::vector<float> x = Values(k, 1, 3);
    const std::vector<float> weight = Values(k, 2);
    std::vector<float> y(static_cast<std::size_t>(k) + 1, -7.0f);
    GetParam()->rms_norm(x.data() + 1, weight.data() + 1, 1e-6f, k, y.data());
    double sum = 0;
    for (std::int64_t i = 1; i <= k; ++i) {
      sum += static_cast<double>(x[static_cast<std::size_t>(i)]) * x[static_cast<std::size_t>(i)];
    }
    const double inverse = 1 / std::sqrt(sum / static_cast<double>(k) + 1e-6);
    for (std::int64_t i = 0; i < k; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double expected = x[at + 1] * inverse * weight[at + 1];
      EXPECT_NEAR(y[at], expected, kRowTolerance * std::fabs(expected));
    }
    EXPECT_EQ(y[static_cast<std::size_t>(k)], -7.0f);
    std::vector<float> scalar(static_cast<std::size_t>(k));
    ScalarKernels().rms_norm(x.data() + 1, weight.data() + 1, 1e-6f, k, scalar.data());
    EXPECT_EQ(std::memcmp(y.data(), scalar.data(), scalar.size() * 4), 0) << k;
  }
}

TEST_P(Rows, RmsNormWithoutWeightInPlace) {
  std::vector<float> x(37, 2.0f);
  GetParam()->rms_norm(x.data(), nullptr, 0.0f, 37, x.data());
  EXPECT_EQ(x[0], 1.0f);
  EXPECT_EQ(x[36], 1.0f);
}

TEST_P(Rows, RmsNormOfZerosIsZero) {
  std::vector<float> x(64, 0.0f);
  const std::vector<float> weight(64, 1.0f);
  GetParam()->rms_norm(x.data(), weight.data(), 1e-6f, 64, x.data());
  EXPECT_EQ(x[63], 0.0f);
}

TEST_P(Rows, QuantizeHasTheScalarBits) {
  for (const std::int64_t k : kSizes) {
    for (const float scale : {1.0f, 1e-36f, 1e30f, 0.0f}) {
      const std::vector<float> x = Values(k, 3, scale);
      std::vector<ActBlock> expected(static_cast<std::size_t>((k + 31) / 32));
      std::vector<ActBlock> blocks(expected.size());
      std::memset(blocks.data(), 0x55, blocks.size() * sizeof(ActBlock));
      ScalarKernels().quantize(x.data() + 1, k, expected.data());
      GetParam()->quantize(x.data() + 1, k, blocks.data());
      EXPECT_EQ(std::memcmp(blocks.data(), expected.data(), blocks.size() * sizeof(ActBlock)), 0)
          << k << " " << scale;
    }
  }
}

TEST_P(Rows, QuantizeIsWithinHalfAStep) {
  const std::vector<float> x = Values(4864, 4);
  std::vector<ActBlock> blocks(152);
  GetParam()->quantize(x.data(), 4864, blocks.data());
  for (std::size_t i = 0; i < 4864; ++i) {
    const ActBlock& b = blocks[i / 32];
    EXPECT_LE(std::fabs(b.d * b.q[i % 32] - x[i]), b.d * 0.501f);
    EXPECT_EQ(b.n % 128, 0);
  }
}

TEST_P(Rows, ToBf16HasTheScalarBitsAndPads) {
  if (!GetParam()->bf16_dot) {
    return;
  }
  for (const std::int64_t k : kSizes) {
    const std::vector<float> x = Values(k, 5);
    std::vector<std::uint16_t> y(static_cast<std::size_t>(k + 2), 0x5555);
    GetParam()->to_bf16(x.data() + 1, k, y.data());
    for (std::int64_t i = 0; i < k; ++i) {
      EXPECT_EQ(y[static_cast<std::size_t>(i)], FloatToBf16(x[static_cast<std::size_t>(i + 1)]));
    }
    EXPECT_EQ(y[static_cast<std::size_t>(k)], k % 2 != 0 ? 0 : 0x5555);
    EXPECT_EQ(y[static_cast<std::size_t>(k + 1)], 0x5555);
  }
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(std::nanf("")))));
  EXPECT_EQ(FloatToBf16(HUGE_VALF), 0x7f80);
  EXPECT_EQ(FloatToBf16(1.00390625f), 0x3f80) << "a tie goes to the even neighbour";
  EXPECT_EQ(FloatToBf16(1.01171875f), 0x3f82) << "a tie goes to the even neighbour";
  EXPECT_EQ(FloatToBf16(1.004f), 0x3f81);
  EXPECT_EQ(FloatToBf16(0x1p-130f), 0x0008) << "denormals are kept";
}

TEST(Half, EveryHalfComesBack) {
  for (std::uint32_t half = 0; half < 0x10000; ++half) {
    const bool is_nan = (half & 0x7fff) > 0x7c00;
    const float value = HalfToFloat(static_cast<std::uint16_t>(half));
    const std::uint16_t back = FloatToHalf(value);
    ASSERT_TRUE(is_nan ? std::isnan(HalfToFloat(back)) : back == half) << half;
  }
}

TEST(Half, RoundsToNearestEvenAndClamps) {
  EXPECT_EQ(FloatToHalf(1.00048828125f), 0x3c00) << "a tie goes to the even neighbour";
  EXPECT_EQ(FloatToHalf(1.00146484375f), 0x3c02) << "a tie goes to the even neighbour";
  EXPECT_EQ(FloatToHalf(1.0005f), 0x3c01);
  EXPECT_EQ(FloatToHalf(0x1p-25f), 0) << "half of the smallest";
  EXPECT_EQ(FloatToHalf(0x1.8p-24f), 2);
  EXPECT_EQ(FloatToHalf(6.1035e-05f), 0x0400) << "up to the smallest normal";
  EXPECT_EQ(FloatToHalf(65519.0f), 0x7bff);
  EXPECT_EQ(FloatToHalf(1e30f), 0x7bff);
  EXPECT_EQ(FloatToHalf(-1e30f), 0xfbff);
  EXPECT_EQ(FloatToHalf(-HUGE_VALF), 0xfc00);
}

TEST_P(Rows, GateMulMatchesDouble) {
  for (const Gate kind : {Gate::kSilu, Gate::kGeluTanh, Gate::kGelu}) {
    for (const std::int64_t k : kSizes) {
      std::vector<float> gate = Values(k, 6, 4);
      const std::vector<float> up = Values(k, 7);
      gate[0] = -200;
      gate[static_cast<std::size_t>(k)] = 90;
      std::vector<float> y(gate.size());
      std::vector<float> expected(gate.size());
      GetParam()->gate_mul(kind, gate.data(), up.data(), k, y.data());
      ScalarKernels().gate_mul(kind, gate.data(), up.data(), k, expected.data());
      for (std::size_t i = 0; i < static_cast<std::size_t>(k); ++i) {
        const float size = std::fabs(gate[i] * up[i]);
        EXPECT_NEAR(y[i], expected[i], kRowTolerance * std::min(size, 100.0f) + 1e-30f)
            << i << " " << gate[i];
      }
    }
  }
}

TEST_P(Rows, AddAndAxpy) {
  for (const std::int64_t k : kSizes) {
    std::vector<float> x = Values(k, 8);
    const std::vector<float> y = Values(k, 9);
    std::vector<float> sum = x;
    GetParam()->add(sum.data(), y.data(), k);
    std::vector<float> scaled = x;
    GetParam()->axpy(0.3f, y.data(), k, scaled.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(k); ++i) {
      EXPECT_EQ(sum[i], x[i] + y[i]);
      EXPECT_EQ(scaled[i], std::fma(0.3f, y[i], x[i]));
    }
    EXPECT_EQ(sum.back(), x.back());
    EXPECT_EQ(scaled.back(), x.back());
  }
}

std::string Name(const testing::TestParamInfo<const KernelTable*>& info) {
  std::string name = info.param->name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Rows, testing::ValuesIn(Tables()), Name);

}  // namespace
}  // namespace inferd::kernels
