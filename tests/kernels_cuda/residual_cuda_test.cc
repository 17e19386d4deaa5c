// SPDX-License-Identifier: Apache-2.0
// What blocks add to the residual stream: the shared expert's part, and the sum fused with the norm
// that follows it.
#include "device_fixture.h"
#include "kernels/rows/gated_cuda.h"
#include "kernels/rows/rows_cuda.h"

#include <gtest/gtest.h>

#include <cmath>

namespace inferd::kernels::cuda {
namespace {

TEST(ResidualCuda, AddGatedWeighsEachRowByItsGate) {
  struct Shape {
    std::int64_t rows, n, ldy, ldx;
  };
  for (const Shape s : {Shape{1, 1, 1, 1}, Shape{3, 257, 300, 260}, Shape{5, 64, 64, 64}}) {
    const auto y = RandomFloats(static_cast<std::size_t>(s.rows * s.ldy), 1);
    const auto x = RandomFloats(static_cast<std::size_t>(s.rows * s.ldx), 2);
    auto gate = RandomFloats(static_cast<std::size_t>(s.rows), 3);
    gate[0] = -200;  // its sigmoid is 0, its exponential no float
    const DeviceArray<float> dy(y), dx(x), dgate(gate);
    EXPECT_OK(AddGated(dy.get(), s.ldy, dx.get(), s.ldx, dgate.get(), s.rows, s.n, nullptr));
    std::vector<double> want(y.begin(), y.end());
    for (std::int64_t r = 0; r < s.rows; ++r) {
      for (std::int64_t i = 0; i < s.n; ++i) {
        want[static_cast<std::size_t>(r * s.ldy + i)] +=
            x[static_cast<std::size_t>(r * s.ldx + i)] /
            (1 + std::exp(-static_cast<double>(gate[static_cast<std::size_t>(r)])));
      }
    }
    const auto got = dy.Download();
    EXPECT_LT(RelativeError(got, want), 1e-6) << s.n;
    EXPECT_EQ(got[0], y[0]);
    if (s.ldy > s.n) {
      EXPECT_EQ(got[static_cast<std::size_t>(s.n)], y[static_cast<std::size_t>(s.n)]);
    }
  }
  EXPECT_OK(AddGated(nullptr, 0, nullptr, 0, nullptr, 0, 4, nullptr));
}

TEST(ResidualCuda, AddRmsNormHasTheBitsOfAddThenRmsNorm) {
  constexpr std::int64_t kRows = 3, kWidth = 333;
  const auto x = RandomFloats(kRows * kWidth, 4), add = RandomFloats(kRows * kWidth, 5);
  const auto weight = RandomFloats(kWidth, 6);
  const DeviceArray<float> fused(x), apart(x), dadd(add), dw(weight);
  const DeviceArray<float> fused_y(kRows * kWidth), apart_y(kRows * kWidth);
  EXPECT_OK(AddRmsNorm(fused.get(),
                       kWidth,
                       dadd.get(),
                       kWidth,
                       dw.get(),
                       1e-6F,
                       kRows,
                       kWidth,
                       fused_y.get(),
                       kWidth,
                       nullptr));
  EXPECT_OK(Add(apart.get(), kWidth, dadd.get(), kWidth, kRows, kWidth, nullptr));
  EXPECT_OK(
      RmsNorm(apart.get(), kWidth, dw.get(), 1e-6F, kRows, kWidth, apart_y.get(), kWidth, nullptr));
  EXPECT_EQ(fused.Download(), apart.Download());
  EXPECT_EQ(fused_y.Download(), apart_y.Download());
}

}  // namespace
}  // namespace inferd::kernels::cuda
