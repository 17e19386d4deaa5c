// SPDX-License-Identifier: Apache-2.0
// Matrices whose stored columns have an order of their own (act-order), on ops' CUDA device.
#include "device_fixture.h"
#include "kernels/dequant/dequant.h"
#include "kernels/kernel_fixture.h"
#include "ops/device.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <numeric>

namespace inferd::ops {
namespace {

using kernels::cuda::RandomFloats;

struct Stored {
  DType type = DType::kQ4_0;
  std::int64_t columns = 0;
  std::vector<std::int32_t> order;  // empty: none
};

// A shuffle of k inputs with gaps; `columns` of them.
std::vector<std::int32_t> Shuffled(std::int64_t columns, std::int64_t k, unsigned seed) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(columns), -1);
  std::iota(order.begin(), order.begin() + k, 0);
  std::mt19937 random(seed);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random() % i]);
  }
  return order;
}

// y [rows, n] of each matrix over the same inputs [rows, k] has the largest error, in units of sum
// |w x|.
double WorstError(const std::vector<Stored>& matrices,
                  std::int64_t rows,
                  std::int64_t n,
                  std::int64_t k) {
  double worst = 0;
  const auto check = [&](const auto& result) {
    EXPECT_TRUE(result.ok()) << result.error().message();
    return result.ok();
  };
  auto device = MakeDevice(kernels::cuda::kTestDevice, 1, {});
  if (!check(device)) {
    return HUGE_VAL;
  }
  std::vector<std::unique_ptr<PackedMatrix>> packed;
  std::vector<std::vector<float>> wide;
  kernels::TestRandom random(3);
  for (const Stored& stored : matrices) {
    const auto bytes = kernels::RandomRows(stored.type, n, stored.columns, random);
    const std::int64_t row_bytes = kernels::RowBytes(stored.type, stored.columns);
    auto& values = wide.emplace_back(static_cast<std::size_t>(n * stored.columns));
    for (std::int64_t i = 0; i < n; ++i) {
      kernels::DequantRow(stored.type,
                          bytes.data() + i * row_bytes,
                          stored.columns,
                          values.data() + i * stored.columns);
    }
    auto matrix = (*device)->Pack(stored.type,
                                  bytes,
                                  n,
                                  stored.columns,
                                  static_cast<std::size_t>(row_bytes),
                                  {},
                                  {stored.order, k});
    if (!check(matrix)) {
      return HUGE_VAL;
    }
    EXPECT_EQ((*matrix)->k(), k);
    packed.push_back(*std::move(matrix));
  }
  const std::vector<std::int32_t> head_of = {0};
  StepLimits limits;
  limits.rows = rows;
  limits.sequences = 1;
  limits.pages_per_sequence = 1;
  limits.kv_head_of = head_of;
  limits.head_dim = 64;
  EXPECT_TRUE((*device)->Reserve(limits).ok());
  const auto act = (*device)->NewActivations(rows, k, kActFloat);
  const auto x = RandomFloats(static_cast<std::size_t>(rows * k), 4);
  const auto ldy = static_cast<std::int64_t>(matrices.size()) * n;
  const auto dx = (*device)->Allocate(x.size() * sizeof(float), "a test");
  const auto dy =
      (*device)->Allocate(static_cast<std::size_t>(rows * ldy) * sizeof(float), "a test");
  if (!check(dx) || !check(dy)) {
    return HUGE_VAL;
  }
  (*device)->Copy(dx->data(), x.data(), dx->bytes());
  (*device)->Quantize(dx->floats(), k, rows, act.get());
  std::vector<MatMulTask> tasks;
  for (std::size_t m = 0; m < packed.size(); ++m) {
    tasks.push_back(
        {packed[m].get(), nullptr, dy->floats() + static_cast<std::int64_t>(m) * n, ldy});
  }
  (*device)->MatMul(*act, rows, tasks);
  std::vector<float> y(static_cast<std::size_t>(rows * ldy));
  (*device)->Copy(y.data(), dy->data(), dy->bytes());
  EXPECT_TRUE((*device)->Wait().ok());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < ldy; ++i) {
      const auto m = static_cast<std::size_t>(i / n);
      double sum = 0, size = 1e-20;
      for (std::int64_t j = 0; j < matrices[m].columns; ++j) {
        const std::int64_t input =
            matrices[m].order.empty() ? j : matrices[m].order[static_cast<std::size_t>(j)];
        if (input >= 0) {
          const double term =
              static_cast<double>(
                  wide[m][static_cast<std::size_t>(i % n * matrices[m].columns + j)]) *
              static_cast<double>(x[static_cast<std::size_t>(row * k + input)]);
          sum += term;
          size += std::fabs(term);
        }
      }
      const float got = y[static_cast<std::size_t>(row * ldy + i)];
      worst = std::isfinite(got) ? std::max(worst, std::fabs(static_cast<double>(got) - sum) / size)
                                 : HUGE_VAL;
    }
  }
  return worst;
}

TEST(OrderCuda, InputsMeetTheColumnsThatNameThem) {
  constexpr std::int64_t kInputs = 70, kColumns = 96;
  const auto order = Shuffled(kColumns, kInputs, 1);
  const auto other = Shuffled(2 * kColumns, kInputs, 2);
  // What is there in one order is not taken for another, nor for inputs in 16 bits.
  const std::vector<Stored> matrices = {{DType::kQ4_0, kColumns, order},
                                        {DType::kBF16, kInputs, {}},
                                        {DType::kQ4_1, kColumns, order},
                                        {DType::kQ4_1, 2 * kColumns, other},
                                        {DType::kBF16, kInputs, {}},
                                        {DType::kQ4_0, kColumns, order}};
  for (const char* const library_rows : {"0", "1"}) {
    setenv("INFERD_CUBLASLT_ROWS", library_rows, 1);
    for (const std::int64_t rows : {1, 9, 40}) {
      EXPECT_LT(WorstError(matrices, rows, 21, kInputs), 1.5e-5) << rows << " " << library_rows;
    }
  }
  unsetenv("INFERD_CUBLASLT_ROWS");
}

TEST(OrderCuda, MoreRowsThanThereIsRoomFor) {
  const std::vector<Stored> matrices = {{DType::kQ4_0, 32, Shuffled(32, 20, 3)},
                                        {DType::kQ4_0, 32, Shuffled(32, 20, 3)}};
  EXPECT_LT(WorstError(matrices, 2100, 4, 20), 1.5e-5);
}

TEST(OrderCuda, AMatrixStaysAtFourBits) {
  constexpr std::int64_t kN = 512, kInputs = 256;
  auto device = MakeDevice(kernels::cuda::kTestDevice, 1, {});
  ASSERT_TRUE(device.ok()) << device.error().message();
  kernels::TestRandom random(3);
  const auto order = Shuffled(kInputs, kInputs, 4);
  const auto bytes = kernels::RandomRows(DType::kQ4_0, kN, kInputs, random);
  const auto matrix =
      (*device)->Pack(DType::kQ4_0, bytes, kN, kInputs, bytes.size() / kN, {}, {order, kInputs});
  ASSERT_TRUE(matrix.ok()) << matrix.error().message();
  EXPECT_EQ((*matrix)->bytes(), bytes.size() + order.size() * sizeof(std::int32_t));
  EXPECT_LT(8.0 * static_cast<double>((*matrix)->bytes()) / (kN * kInputs), 4.6);
}

}  // namespace
}  // namespace inferd::ops
