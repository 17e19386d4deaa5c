// SPDX-License-Identifier: Apache-2.0
// Norms, gate and add on the device: odd sizes, zero rows, strides, rows independent of neighbours.
#include "kernels/rows/rows_cuda.h"

#include "device_fixture.h"
#include "kernels/rows/rows_ref.h"

#include <gtest/gtest.h>

#include <cmath>

namespace inferd::kernels::cuda {
namespace {

constexpr double kTolerance = 3e-6;

struct Shape {
  std::int64_t rows, k, ld;
};
constexpr Shape kShapes[] = {
    {1, 1, 1}, {3, 31, 31}, {2, 64, 70}, {5, 100, 128}, {4, 896, 896}, {2, 1003, 1003}};

std::vector<double> NormReference(const std::vector<float>& x,
                                  const std::vector<float>& weight,
                                  Shape s) {
  std::vector<double> y(static_cast<std::size_t>(s.rows * s.ld));
  std::vector<float> row(static_cast<std::size_t>(s.k));
  for (std::int64_t r = 0; r < s.rows; ++r) {
    RmsNormScalar(x.data() + r * s.ld, weight.data(), 1e-5F, s.k, row.data());
    std::copy(row.begin(), row.end(), y.begin() + r * s.ld);
  }
  return y;
}

TEST(RowsCuda, RmsNormMatchesTheReference) {
  for (const Shape s : kShapes) {
    const auto x = RandomFloats(static_cast<std::size_t>(s.rows * s.ld), 1, 3);
    const auto weight = RandomFloats(static_cast<std::size_t>(s.k), 2);
    const DeviceArray<float> dx(x), dw(weight);
    DeviceArray<float> dy(std::vector<float>(x.size(), 0.0F));
    EXPECT_OK(RmsNorm(dx.get(), s.ld, dw.get(), 1e-5F, s.rows, s.k, dy.get(), s.ld, nullptr));
    EXPECT_LT(RelativeError(dy.Download(), NormReference(x, weight, s)), kTolerance) << s.k;
    EXPECT_EQ(dx.Download(), x);
  }
}

TEST(RowsCuda, RmsNormInPlaceWithoutWeight) {
  const DeviceArray<float> x(std::vector<float>(74, 2.0F));
  EXPECT_OK(RmsNorm(x.get(), 37, nullptr, 0.0F, 2, 37, x.get(), 37, nullptr));
  EXPECT_EQ(x.Download(), std::vector<float>(74, 1.0F));
}

TEST(RowsCuda, AddRmsNormIsAddThenRmsNorm) {
  for (const Shape s : kShapes) {
    const auto count = static_cast<std::size_t>(s.rows * s.ld);
    auto x = RandomFloats(count, 3);
    const auto add = RandomFloats(count, 4);
    const auto weight = RandomFloats(static_cast<std::size_t>(s.k), 5);
    const DeviceArray<float> dx(x), dadd(add), dw(weight);
    DeviceArray<float> dy(std::vector<float>(count, 0.0F));
    EXPECT_OK(AddRmsNorm(
        dx.get(), s.ld, dadd.get(), s.ld, dw.get(), 1e-5F, s.rows, s.k, dy.get(), s.ld, nullptr));
    for (std::int64_t r = 0; r < s.rows; ++r) {
      AddScalar(x.data() + r * s.ld, add.data() + r * s.ld, s.k);
    }
    EXPECT_EQ(dx.Download(), x) << s.k;
    EXPECT_LT(RelativeError(dy.Download(), NormReference(x, weight, s)), kTolerance) << s.k;
  }
}

TEST(RowsCuda, ARowsBitsDoNotDependOnItsNeighbours) {
  const auto x = RandomFloats(7 * 333, 6);
  const auto weight = RandomFloats(333, 7);
  const DeviceArray<float> dx(x), dw(weight), all(x.size()), one(333);
  EXPECT_OK(RmsNorm(dx.get(), 333, dw.get(), 1e-6F, 7, 333, all.get(), 333, nullptr));
  EXPECT_OK(RmsNorm(dx.get() + 4 * 333, 333, dw.get(), 1e-6F, 1, 333, one.get(), 333, nullptr));
  const auto rows = all.Download();
  EXPECT_EQ(std::vector<float>(rows.begin() + 4 * 333, rows.begin() + 5 * 333), one.Download());
}

TEST(RowsCuda, LayerNormMatchesDouble) {
  for (const Shape s : kShapes) {
    const auto x = RandomFloats(static_cast<std::size_t>(s.rows * s.ld), 8, 2);
    const auto weight = RandomFloats(static_cast<std::size_t>(s.k), 9);
    const auto bias = RandomFloats(static_cast<std::size_t>(s.k), 10);
    const DeviceArray<float> dx(x), dw(weight), db(bias);
    DeviceArray<float> dy(std::vector<float>(x.size(), 0.0F));
    EXPECT_OK(
        LayerNorm(dx.get(), s.ld, dw.get(), db.get(), 1e-5F, s.rows, s.k, dy.get(), s.ld, nullptr));
    std::vector<double> want(x.size());
    for (std::int64_t r = 0; r < s.rows; ++r) {
      double mean = 0, variance = 0;
      const float* row = x.data() + r * s.ld;
      for (std::int64_t i = 0; i < s.k; ++i) {
        mean += row[i] / static_cast<double>(s.k);
      }
      for (std::int64_t i = 0; i < s.k; ++i) {
        variance += (row[i] - mean) * (row[i] - mean) / static_cast<double>(s.k);
      }
      for (std::int64_t i = 0; i < s.k; ++i) {
        const auto at = static_cast<std::size_t>(i);
        want[static_cast<std::size_t>(r * s.ld + i)] =
            (row[i] - mean) / std::sqrt(variance + 1e-5) * weight[at] + bias[at];
      }
    }
    EXPECT_LT(RelativeError(dy.Download(), want), kTolerance) << s.k;
  }
}

TEST(RowsCuda, GateMulMatchesTheReference) {
  for (const Gate kind : {Gate::kSilu, Gate::kGeluTanh, Gate::kGelu}) {
    for (const Shape s : kShapes) {
      const auto count = static_cast<std::size_t>(s.rows * s.ld);
      const auto gate = RandomFloats(count, 11, 4);
      const auto up = RandomFloats(count, 12);
      const DeviceArray<float> dg(gate), du(up), dy(static_cast<std::size_t>(s.rows * s.k));
      EXPECT_OK(GateMul(kind, dg.get(), du.get(), s.ld, s.rows, s.k, dy.get(), s.k, nullptr));
      std::vector<float> row(static_cast<std::size_t>(s.k));
      std::vector<double> want;
      for (std::int64_t r = 0; r < s.rows; ++r) {
        GateMulScalar(kind, gate.data() + r * s.ld, up.data() + r * s.ld, s.k, row.data());
        want.insert(want.end(), row.begin(), row.end());
      }
      EXPECT_LT(RelativeError(dy.Download(), want, 1), kTolerance) << s.k;
    }
  }
}

TEST(RowsCuda, SoftcapMatchesDouble) {
  const auto x = RandomFloats(1000, 15, 40);
  const DeviceArray<float> dx(x);
  EXPECT_OK(Softcap(dx.get(), 30, 1000, nullptr));
  std::vector<double> want;
  for (const float value : x) {
    want.push_back(30 * std::tanh(static_cast<double>(value) / 30));
  }
  EXPECT_LT(RelativeError(dx.Download(), want, 1), kTolerance);
}

TEST(RowsCuda, AddIsExact) {
  for (const Shape s : kShapes) {
    const auto count = static_cast<std::size_t>(s.rows * s.ld);
    auto x = RandomFloats(count, 13);
    const auto y = RandomFloats(count, 14);
    const DeviceArray<float> dx(x), dy(y);
    EXPECT_OK(Add(dx.get(), s.ld, dy.get(), s.ld, s.rows, s.k, nullptr));
    for (std::int64_t r = 0; r < s.rows; ++r) {
      AddScalar(x.data() + r * s.ld, y.data() + r * s.ld, s.k);
    }
    EXPECT_EQ(dx.Download(), x);
  }
}

TEST(RowsCuda, ZeroRowsLaunchNothing) {
  const DeviceArray<float> x(std::vector<float>(4, 1.0F));
  EXPECT_OK(RmsNorm(x.get(), 4, nullptr, 0, 0, 4, x.get(), 4, nullptr));
  EXPECT_OK(AddRmsNorm(x.get(), 4, x.get(), 4, nullptr, 0, 0, 4, x.get(), 4, nullptr));
  EXPECT_OK(LayerNorm(x.get(), 4, x.get(), nullptr, 0, 0, 4, x.get(), 4, nullptr));
  EXPECT_OK(GateMul(Gate::kSilu, x.get(), x.get(), 4, 0, 4, x.get(), 4, nullptr));
  EXPECT_OK(Add(x.get(), 4, x.get(), 4, 0, 4, nullptr));
  EXPECT_EQ(x.Download(), std::vector<float>(4, 1.0F));
}

}  // namespace
}  // namespace inferd::kernels::cuda
