// SPDX-License-Identifier: Apache-2.0
// Products of every stored type on the device against double, over shapes that fill tiles and
// shapes that do not; the same bits whatever the batch.
#include "kernels/matmul/matmul_cuda.h"

#include "device_fixture.h"
#include "kernels/dequant/dequant.h"
#include "kernels/kernel_fixture.h"

#include <gtest/gtest.h>

namespace inferd::kernels::cuda {
namespace {

constexpr DType kTypes[] = {DType::kF32,
                            DType::kF16,
                            DType::kBF16,
                            DType::kF8E4M3,
                            DType::kQ4_0,
                            DType::kQ4_1,
                            DType::kQ5_0,
                            DType::kQ5_1,
                            DType::kQ8_0,
                            DType::kMXFP4,
                            DType::kQ4_K,
                            DType::kQ5_K,
                            DType::kQ6_K};
constexpr double kTolerance = 1.5e-5;  // of sum |w x|: activations have 16 bits

struct Product {
  std::vector<float> weights;  // [n, k] dequantised
  std::vector<float> x;        // [m, k]
  std::int64_t n, k, m;

  // Largest error in units of sum |w x|.
  double Error(const std::vector<float>& y, const std::vector<float>& bias) const {
    double worst = 0;
    for (std::int64_t row = 0; row < m; ++row) {
      for (std::int64_t i = 0; i < n; ++i) {
        double sum = 0, size = 1e-20;
        for (std::int64_t j = 0; j < k; ++j) {
          const double term = static_cast<double>(weights[static_cast<std::size_t>(i * k + j)]) *
                              x[static_cast<std::size_t>(row * k + j)];
          sum += term;
          size += std::fabs(term);
        }
        const float got = y[static_cast<std::size_t>(row * n + i)];
        const double want =
            sum + (bias.empty() ? 0.0 : static_cast<double>(bias[static_cast<std::size_t>(i)]));
        worst = std::isfinite(got)
                    ? std::max(worst, std::fabs(got - want) / (size + std::fabs(want)))
                    : HUGE_VAL;
      }
    }
    return worst;
  }
};

Matrix Describe(DType type, const DeviceArray<std::byte>& rows, std::int64_t n, std::int64_t k) {
  Matrix w;
  w.type = type;
  w.rows = rows.get();
  w.row_bytes = RowBytes(type, k);
  w.n = n;
  w.k = k;
  return w;
}

Product MakeProduct(
    DType type, std::int64_t n, std::int64_t k, std::int64_t m, std::vector<std::byte>* rows) {
  TestRandom random(static_cast<std::uint64_t>(n * 1000 + k));
  *rows = RandomRows(type, n, k, random);
  Product p{std::vector<float>(static_cast<std::size_t>(n * k)),
            RandomFloats(static_cast<std::size_t>(m * k), 5),
            n,
            k,
            m};
  for (std::int64_t i = 0; i < n; ++i) {
    DequantRow(type, rows->data() + i * RowBytes(type, k), k, p.weights.data() + i * k);
  }
  return p;
}

TEST(MatMulCuda, EveryTypeAndBatch) {
  for (const DType type : kTypes) {
    EXPECT_TRUE(HasMatMul(type));
    for (const std::int64_t m : {1, 9, 33, 70}) {
      const std::int64_t n = m == 9 ? 5 : 70;
      const std::int64_t k = BlockElements(type) == 1 ? 203 - m % 2 * 3 : 256 * (m == 1 ? 5 : 1);
      std::vector<std::byte> rows;
      const Product p = MakeProduct(type, n, k, m, &rows);
      const DeviceArray<std::byte> dw(rows);
      const auto bias = RandomFloats(static_cast<std::size_t>(n), 6);
      const DeviceArray<float> dx(p.x), db(bias), y(static_cast<std::size_t>(m * n));
      EXPECT_OK(
          MatMul(Describe(type, dw, n, k), dx.get(), k, m, db.get(), false, y.get(), n, nullptr));
      EXPECT_LT(p.Error(y.Download(), bias), kTolerance) << DTypeName(type) << " m " << m;
    }
  }
}

TEST(MatMulCuda, ARowsBitsDoNotDependOnTheBatch) {
  for (const DType type : {DType::kBF16, DType::kF32, DType::kQ6_K, DType::kQ4_K}) {
    constexpr std::int64_t kN = 20, kK = 768, kM = 40;
    std::vector<std::byte> rows;
    const Product p = MakeProduct(type, kN, kK, kM, &rows);
    const DeviceArray<std::byte> dw(rows);
    const DeviceArray<float> dx(p.x), y(kM * kN);
    const Matrix w = Describe(type, dw, kN, kK);
    EXPECT_OK(MatMul(w, dx.get(), kK, kM, nullptr, false, y.get(), kN, nullptr));
    const auto all = y.Download();
    for (const std::int64_t count : {1, 8, 12, 33}) {
      const DeviceArray<float> part(static_cast<std::size_t>(count * kN));
      EXPECT_OK(MatMul(w, dx.get() + 7 * kK, kK, count, nullptr, false, part.get(), kN, nullptr));
      EXPECT_EQ(part.Download(),
                std::vector<float>(all.begin() + 7 * kN, all.begin() + (7 + count) * kN))
          << DTypeName(type) << " " << count;
    }
  }
}

// Fewer than four chunks of k: some of the quarters that are summed apart are empty.
TEST(MatMulCuda, NarrowInputsInEveryBatch) {
  for (const std::int64_t k : {7, 32, 64, 96, 100, 128}) {
    constexpr std::int64_t kN = 20, kM = 40;
    std::vector<std::byte> rows;
    const Product p = MakeProduct(DType::kF32, kN, k, kM, &rows);
    const DeviceArray<std::byte> dw(rows);
    const DeviceArray<float> dx(p.x), y(kM * kN);
    const Matrix w = Describe(DType::kF32, dw, kN, k);
    EXPECT_OK(MatMul(w, dx.get(), k, kM, nullptr, false, y.get(), kN, nullptr));
    const auto all = y.Download();
    EXPECT_LT(p.Error(all, {}), kTolerance) << "k " << k;
    const DeviceArray<float> one(kN);
    EXPECT_OK(MatMul(w, dx.get() + 7 * k, k, 1, nullptr, false, one.get(), kN, nullptr));
    EXPECT_EQ(one.Download(), std::vector<float>(all.begin() + 7 * kN, all.begin() + 8 * kN))
        << "k " << k;
  }
}

TEST(MatMulCuda, AddsAndKeepsStrides) {
  std::vector<std::byte> rows;
  const Product p = MakeProduct(DType::kBF16, 6, 64, 3, &rows);
  const DeviceArray<std::byte> dw(rows);
  std::vector<float> x(3 * 70, 1e30F);
  for (std::size_t row = 0; row < 3; ++row) {
    std::copy_n(p.x.begin() + static_cast<std::ptrdiff_t>(row * 64),
                64,
                x.begin() + static_cast<std::ptrdiff_t>(row * 70));
  }
  const DeviceArray<float> dx(x), strided(std::vector<float>(3 * 9, 5.0F)), plain(18), dx0(p.x);
  const Matrix w = Describe(DType::kBF16, dw, 6, 64);
  EXPECT_OK(MatMul(w, dx.get(), 70, 3, nullptr, true, strided.get(), 9, nullptr));
  EXPECT_OK(MatMul(w, dx0.get(), 64, 3, nullptr, false, plain.get(), 6, nullptr));
  const auto got = strided.Download();
  const auto want = plain.Download();
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t i = 0; i < 9; ++i) {
      EXPECT_EQ(got[row * 9 + i], i < 6 ? 5.0F + want[row * 6 + i] : 5.0F);
    }
  }
}

// FP8, int8 and int4 with scales per tensor, per row and per block.
TEST(MatMulCuda, ScalesBesideTheWeights) {
  constexpr std::int64_t kN = 40, kK = 256, kM = 11;
  struct Layout {
    std::int64_t scale_rows, scale_k;
  };
  for (const DType type : {DType::kF8E4M3, DType::kI8, DType::kU8}) {
    for (const Layout layout : {Layout{kN, kK}, Layout{1, kK}, Layout{16, 128}, Layout{1, 32}}) {
      for (const bool zeros : {false, true}) {
        TestRandom random(9);
        const std::int64_t row_bytes = type == DType::kU8 ? kK / 2 : kK;
        std::vector<std::byte> bytes(static_cast<std::size_t>(kN * row_bytes));
        for (std::byte& b : bytes) {
          const auto value = static_cast<std::uint8_t>(random.Next());
          b = static_cast<std::byte>(type == DType::kF8E4M3 && (value & 0x7f) == 0x7f ? 0 : value);
        }
        const std::int64_t ld = (kK + layout.scale_k - 1) / layout.scale_k;
        const auto count =
            static_cast<std::size_t>((kN + layout.scale_rows - 1) / layout.scale_rows * ld);
        const auto scales = RandomFloats(count, 10);
        std::vector<std::uint8_t> zero(count);
        for (auto& z : zero) {
          z = static_cast<std::uint8_t>(random.Next() % 16);
        }
        Product p{std::vector<float>(kN * kK), RandomFloats(kM * kK, 11), kN, kK, kM};
        for (std::int64_t i = 0; i < kN; ++i) {
          for (std::int64_t j = 0; j < kK; ++j) {
            const auto at =
                static_cast<std::size_t>(i / layout.scale_rows * ld + j / layout.scale_k);
            const auto byte = static_cast<std::uint8_t>(
                bytes[static_cast<std::size_t>(i * row_bytes + (type == DType::kU8 ? j / 2 : j))]);
            const int nibble = j % 2 == 0 ? byte & 15 : byte >> 4;
            const float value = type == DType::kF8E4M3 ? Fp8ToFloat(byte)
                                : type == DType::kI8
                                    ? static_cast<float>(static_cast<std::int8_t>(byte))
                                    : static_cast<float>(nibble - (zeros ? zero[at] : 8));
            p.weights[static_cast<std::size_t>(i * kK + j)] = value * scales[at];
          }
        }
        const DeviceArray<std::byte> dw(bytes);
        const DeviceArray<float> ds(scales), dx(p.x), y(kM * kN);
        const DeviceArray<std::uint8_t> dz(zero);
        Matrix w = Describe(type, dw, kN, kK);
        w.row_bytes = row_bytes;
        w.scales = ds.get();
        w.zeros = zeros && type == DType::kU8 ? dz.get() : nullptr;
        w.scale_rows = layout.scale_rows;
        w.scale_k = layout.scale_k;
        w.scale_ld = ld;
        EXPECT_OK(MatMul(w, dx.get(), kK, kM, nullptr, false, y.get(), kN, nullptr));
        EXPECT_LT(p.Error(y.Download(), {}), kTolerance)
            << DTypeName(type) << " " << layout.scale_k;
      }
    }
  }
}

TEST(MatMulCuda, RefusesWhatItCannotAndTakesZeroRows) {
  const DeviceArray<std::byte> rows(64);
  const DeviceArray<float> x(std::vector<float>(64, 1.0F)), y(std::vector<float>(4, 3.0F));
  Matrix w = Describe(DType::kBF16, rows, 1, 32);
  EXPECT_OK(MatMul(w, x.get(), 32, 0, nullptr, false, y.get(), 1, nullptr));
  w.type = DType::kI32;
  EXPECT_FALSE(HasMatMul(DType::kI32));
  EXPECT_EQ(MatMul(w, x.get(), 32, 1, nullptr, false, y.get(), 1, nullptr), Status::kInvalidValue);
  w.type = DType::kI8;
  w.scales = x.get();
  w.scale_k = 20;
  EXPECT_EQ(MatMul(w, x.get(), 32, 1, nullptr, false, y.get(), 1, nullptr), Status::kInvalidValue);
  EXPECT_EQ(y.Download(), std::vector<float>(4, 3.0F));
}

}  // namespace
}  // namespace inferd::kernels::cuda
