// SPDX-License-Identifier: Apache-2.0
// Inputs of products in other forms: split into 16-bit terms, and put into another order.
#include "kernels/matmul/inputs_cuda.h"

#include "device_fixture.h"
#include "kernels/types.h"

#include <gtest/gtest.h>

#include <numeric>

namespace inferd::kernels::cuda {
namespace {

float Widen(DType type, std::uint16_t bits) {
  return type == DType::kBF16 ? Bf16ToFloat(bits) : HalfToFloat(bits);
}

TEST(InputsCuda, TermsAddUpToTheInputs) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const int terms : {1, 2}) {
      for (const std::int64_t k : {1, 7, 64, 1030}) {
        for (const std::int64_t gap : {0, 1, 2, 3}) {  // with some, rows of odd lengths are aligned
          constexpr std::int64_t kRows = 5;
          const std::int64_t ldx = k + gap, ldo = (k + 7) / 8 * 8;
          const std::int64_t stride = kRows * ldo + (gap == 3 ? 3 : 0);
          const float scale = type == DType::kF16 ? 0.25F : 1.0F;
          const auto x = RandomFloats(static_cast<std::size_t>(kRows * ldx), 3, 40);
          const DeviceArray<float> dx(x);
          const DeviceArray<std::uint16_t> out(static_cast<std::size_t>(terms * stride));
          EXPECT_OK(SplitRows(
              type, dx.get(), ldx, kRows, k, scale, terms, out.get(), ldo, stride, nullptr));
          const auto got = out.Download();
          const int bits = (type == DType::kBF16 ? 8 : 11) * terms;
          for (std::int64_t row = 0; row < kRows; ++row) {
            for (std::int64_t j = 0; j < ldo; ++j) {
              const float want = j < k ? x[static_cast<std::size_t>(row * ldx + j)] * scale : 0;
              double sum = 0;
              for (int term = 0; term < terms; ++term) {
                const auto at = static_cast<std::size_t>(term * stride + row * ldo + j);
                if (j >= k) {
                  ASSERT_EQ(got[at], 0xFFFF) << "written past k";
                  continue;
                }
                const bool is_larger = term == 1 && type == DType::kF16;
                sum += static_cast<double>(Widen(type, got[at])) / (is_larger ? kSecondHalf : 1);
              }
              // Of F16 terms the last one of small values is denormal.
              const double lost = terms == 1 ? 0x1p-25 : 0x1p-36;
              const double allowed = std::ldexp(std::fabs(want), -bits) + lost;
              ASSERT_NEAR(sum, j < k ? want : sum, allowed) << "k " << k << " value " << j;
            }
          }
        }
      }
    }
  }
}

TEST(InputsCuda, HalfTermsSaturate) {
  const std::vector<float> x = {70'000, -200'000, 65'504, 0};
  const DeviceArray<float> dx(x);
  const DeviceArray<std::uint16_t> out(std::size_t{8});
  EXPECT_OK(SplitRows(DType::kF16, dx.get(), 4, 1, 4, 1, 2, out.get(), 4, 4, nullptr));
  const auto got = out.Download();
  const auto sum = [&](std::size_t i) {
    return HalfToFloat(got[i]) + HalfToFloat(got[4 + i]) / kSecondHalf;
  };
  EXPECT_EQ(sum(0), 65'504 + 65'504 / kSecondHalf);
  EXPECT_EQ(sum(1), -sum(0));
  EXPECT_EQ(sum(2), 65'504);
  EXPECT_EQ(sum(3), 0);
}

TEST(InputsCuda, ColumnsComeInTheOrderAsked) {
  for (const std::int64_t n : {1, 33, 600}) {
    constexpr std::int64_t kRows = 4, kColumns = 37;
    const auto x = RandomFloats(kRows * kColumns, 8);
    std::vector<std::int32_t> columns(static_cast<std::size_t>(n));
    for (std::size_t j = 0; j < columns.size(); ++j) {
      columns[j] = j % 5 == 4 ? -1 : static_cast<std::int32_t>(j * 7 % kColumns);
    }
    const std::int64_t ldy = n + 2;
    const DeviceArray<float> dx(x), y(std::vector<float>(static_cast<std::size_t>(kRows * ldy), 9));
    const DeviceArray<std::int32_t> dc(columns);
    EXPECT_OK(GatherColumns(dx.get(), kColumns, dc.get(), kRows, n, y.get(), ldy, nullptr));
    const auto got = y.Download();
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t j = 0; j < ldy; ++j) {
        const std::int32_t column = j < n ? columns[static_cast<std::size_t>(j)] : 0;
        const float want = j >= n       ? 9
                           : column < 0 ? 0
                                        : x[static_cast<std::size_t>(row * kColumns + column)];
        ASSERT_EQ(got[static_cast<std::size_t>(row * ldy + j)], want) << row << " " << j;
      }
    }
  }
}

TEST(InputsCuda, RefusesWhatItCannotDo) {
  const DeviceArray<float> x(std::size_t{8});
  const DeviceArray<std::uint16_t> out(std::size_t{8});
  EXPECT_EQ(SplitRows(DType::kF32, x.get(), 4, 1, 4, 1, 1, out.get(), 4, 4, nullptr),
            Status::kInvalidValue);
  EXPECT_EQ(SplitRows(DType::kF16, x.get(), 4, 1, 4, 1, 3, out.get(), 4, 4, nullptr),
            Status::kInvalidValue);
  EXPECT_EQ(SplitRows(DType::kF16, x.get(), 4, 1, 4, 1, 1, out.get(), 3, 4, nullptr),
            Status::kInvalidValue);
  EXPECT_EQ(GatherColumns(x.get(), 4, nullptr, 1, 4, x.get(), 4, nullptr), Status::kInvalidValue);
}

}  // namespace
}  // namespace inferd::kernels::cuda
