// SPDX-License-Identifier: Apache-2.0
// Every product kernel against double arithmetic on the dequantised weights, and bit for bit
// against itself in other batches, panel splits and instruction sets.
#include "kernel_fixture.h"
#include "kernels/dequant/dequant.h"
#include "kernels/pack/pack.h"
#include "tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace inferd::kernels {
namespace {

struct Shape {
  std::int64_t n;
  std::int64_t k;
};

// A packed random matrix, `rows` random tokens in all activation forms, and what the tokens look
// like after rounding.
class Problem {
 public:
  Problem(DType type, Shape shape, std::int64_t rows)
      : type_(type),
        form_(FormOf(type)),
        n_(shape.n),
        k_(shape.k),
        rows_(rows),
        blocks_((k_ + 31) / 32),
        ld_bf16_(k_ + k_ % 2),
        packed_(static_cast<std::size_t>(NumPanels(n_)) * PanelBytes(form_, k_)),
        scratch_(kMatMulScratch),
        x_(static_cast<std::size_t>(rows * k_) * 4),
        bias_(static_cast<std::size_t>(n_) * 4),
        int8_(static_cast<std::size_t>(rows * blocks_) * sizeof(ActBlock)),
        bf16_(static_cast<std::size_t>(rows * ld_bf16_) * 2),
        y_(static_cast<std::size_t>(rows * n_) * 4) {
    TestRandom random(static_cast<std::uint64_t>(n_ * 131 + k_) * 31 +
                      static_cast<std::uint64_t>(type));
    stored_ = RandomRows(type, n_, k_, random);
    const auto row_bytes = static_cast<std::size_t>(RowBytes(type, k_));
    for (std::int64_t p = 0; p < NumPanels(n_); ++p) {
      const int count = static_cast<int>(std::min<std::int64_t>(32, n_ - p * 32));
      auto* out = packed_.data() + static_cast<std::size_t>(p) * PanelBytes(form_, k_);
      const int bad = PackPanel(type,
                                stored_.data() + static_cast<std::size_t>(p) * 32 * row_bytes,
                                row_bytes,
                                count,
                                k_,
                                reinterpret_cast<std::byte*>(out));
      EXPECT_EQ(bad, -1);
    }
    for (std::int64_t i = 0; i < rows * k_; ++i) {
      x_.As<float>()[i] = random.Normal();
    }
    for (std::int64_t i = 0; i < n_; ++i) {
      bias_.As<float>()[i] = random.Normal();
    }
    for (std::int64_t t = 0; t < rows; ++t) {
      ScalarKernels().quantize(x_.As<float>() + t * k_, k_, int8_.As<ActBlock>() + t * blocks_);
      for (std::int64_t i = 0; i < k_; ++i) {
        bf16_.As<std::uint16_t>()[t * ld_bf16_ + i] = FloatToBf16(x_.As<float>()[t * k_ + i]);
      }
    }
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t n() const { return n_; }

  // A token of NaN in all activation forms.
  void Poison(std::int64_t token) {
    std::fill_n(x_.As<float>() + token * k_, k_, std::nanf(""));
    std::fill_n(bf16_.As<std::uint16_t>() + token * ld_bf16_, k_, FloatToBf16(std::nanf("")));
    for (std::int64_t j = 0; j < blocks_; ++j) {
      ActBlock& block = int8_.As<ActBlock>()[token * blocks_ + j];
      block.d = block.s = std::nanf("");
    }
  }

  // Tokens [first, first + m) with the panels done in `parts` calls.
  std::vector<float> Run(
      const KernelTable& table, std::int64_t first, std::int64_t m, int parts, bool bias) {
    float* y = y_.As<float>() + (rows_ - m) * n_;  // ends at the guard
    std::fill_n(y, m * n_, -77.0f);
    MatMulArgs args = {};
    args.form = form_;
    args.panels = packed_.data();
    args.panel_bytes = PanelBytes(form_, k_);
    args.n = n_;
    args.k = k_;
    args.a_int8 = int8_.As<ActBlock>() + first * blocks_;
    args.a_float = x_.As<float>() + first * k_;
    args.a_bf16 = bf16_.As<std::uint16_t>() + first * ld_bf16_;
    args.ld_int8 = blocks_;
    args.ld_float = k_;
    args.ld_bf16 = ld_bf16_;
    args.m = m;
    args.y = y;
    args.ldy = n_;
    args.bias = bias ? bias_.As<float>() : nullptr;
    args.scratch = scratch_.data();
    for (int part = 0; part < parts; ++part) {
      args.first = NumPanels(n_) * part / parts;
      args.last = NumPanels(n_) * (part + 1) / parts;
      table.matmul(args);
    }
    return {y, y + m * n_};
  }

  // Largest |y - reference| / sum |w a| over all tokens and rows of what the table was given.
  double WorstError(const KernelTable& table, const std::vector<float>& y, bool bias) const {
    const bool bf16 = table.bf16_dot && form_ == PackForm::kBf16;
    double worst = 0;
    std::vector<float> w(static_cast<std::size_t>(k_));
    for (std::int64_t r = 0; r < n_; ++r) {
      DequantRow(type_, stored_.data() + r * RowBytes(type_, k_), k_, w.data());
      for (std::int64_t t = 0; t < rows_; ++t) {
        double sum = bias ? static_cast<double>(bias_.As<float>()[r]) : 0;
        double size = std::fabs(sum) + 1e-30;
        for (std::int64_t i = 0; i < k_; ++i) {
          const double product =
              static_cast<double>(w[static_cast<std::size_t>(i)]) * Input(t, i, bf16);
          sum += product;
          size += std::fabs(product);
        }
        worst = std::max(worst, std::fabs(y[static_cast<std::size_t>(t * n_ + r)] - sum) / size);
      }
    }
    return worst;
  }

 private:
  double Input(std::int64_t t, std::int64_t i, bool bf16) const {
    if (bf16) {
      return static_cast<double>(Bf16ToFloat(bf16_.As<std::uint16_t>()[t * ld_bf16_ + i]));
    }
    if (IsInt8Form(form_)) {
      const ActBlock& block = int8_.As<ActBlock>()[t * blocks_ + i / 32];
      return static_cast<double>(block.d) * block.q[i % 32];
    }
    return static_cast<double>(x_.As<float>()[t * k_ + i]);
  }

  DType type_;
  PackForm form_;
  std::int64_t n_;
  std::int64_t k_;
  std::int64_t rows_;
  std::int64_t blocks_;
  std::int64_t ld_bf16_;
  std::vector<std::byte> stored_;
  GuardedBytes packed_;
  GuardedBytes scratch_;
  GuardedBytes x_;
  GuardedBytes bias_;
  GuardedBytes int8_;
  GuardedBytes bf16_;
  GuardedBytes y_;
};

std::vector<Shape> ShapesOf(DType type) {
  const std::int64_t block = BlockElements(type);
  if (block == 1) {
    return {{96, 64}, {50, 33}, {7, 1}, {1, 897}};
  }
  return {{96, block}, {50, block * 3}, {7, block * 2}, {33, 1280}};
}

using Param = std::tuple<const KernelTable*, DType>;

class MatMul : public testing::TestWithParam<Param> {};

TEST_P(MatMul, MatchesDoubleArithmetic) {
  const auto [table, type] = GetParam();
  for (const Shape shape : ShapesOf(type)) {
    Problem problem(type, shape, 9);
    for (const bool bias : {false, true}) {
      const std::vector<float> y = problem.Run(*table, 0, 9, 1, bias);
      EXPECT_LT(problem.WorstError(*table, y, bias), kMatMulTolerance)
          << shape.n << " x " << shape.k;
    }
  }
}

TEST_P(MatMul, RowsDoNotDependOnTheBatch) {
  const auto [table, type] = GetParam();
  constexpr std::int64_t kRows = kMatMulRows + 44;  // more than one pass of kMatMulRows
  Problem problem(type, {70, BlockElements(type) == 1 ? 129 : 1280}, kRows);
  std::vector<float> alone;
  for (std::int64_t t = 0; t < kRows; ++t) {
    const std::vector<float> row = problem.Run(*table, t, 1, 1, true);
    alone.insert(alone.end(), row.begin(), row.end());
  }
  for (const std::int64_t m : std::initializer_list<std::int64_t>{
           2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 31, 32, 50, 64, 257, kRows}) {
    const std::int64_t first = kRows - m;
    const std::vector<float> y = problem.Run(*table, first, m, static_cast<int>(m % 3) + 1, true);
    EXPECT_EQ(std::memcmp(y.data(), alone.data() + first * problem.n(), y.size() * 4), 0)
        << "m = " << m;
  }
}

// With odd k too, where a bf16 pair reaches past the token's last value.
TEST_P(MatMul, NanStaysWithItsToken) {
  const auto [table, type] = GetParam();
  for (const Shape shape : ShapesOf(type)) {
    for (const std::int64_t rows : {3, 14, 40}) {
      Problem problem(type, shape, rows);
      std::vector<float> expected = problem.Run(*table, 0, rows, 1, true);
      problem.Poison(2);
      std::vector<float> y = problem.Run(*table, 0, rows, 1, true);
      for (std::int64_t r = 0; r < shape.n; ++r) {
        const auto at = static_cast<std::size_t>(2 * shape.n + r);
        ASSERT_TRUE(std::isnan(y[at])) << shape.n << " x " << shape.k;
        y[at] = expected[at];
      }
      EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.size() * 4), 0)
          << shape.n << " x " << shape.k << ", " << rows << " tokens";
    }
  }
}

TEST_P(MatMul, HasTheScalarKernelsBits) {
  const auto [table, type] = GetParam();
  if (table->bf16_dot && FormOf(type) == PackForm::kBf16) {
    return;  // other inputs; MatchesDoubleArithmetic judges
  }
  for (const Shape shape : ShapesOf(type)) {
    Problem problem(type, shape, 13);
    const std::vector<float> expected = problem.Run(ScalarKernels(), 0, 13, 1, false);
    const std::vector<float> y = problem.Run(*table, 0, 13, 1, false);
    EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.size() * 4), 0)
        << shape.n << " x " << shape.k;
  }
}

std::string ParamName(const testing::TestParamInfo<Param>& info) {
  std::string name = std::string(std::get<0>(info.param)->name) + "_" +
                     std::string(DTypeName(std::get<1>(info.param)));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All,
                         MatMul,
                         testing::Combine(testing::ValuesIn(Tables()),
                                          testing::ValuesIn(WeightTypes())),
                         ParamName);

}  // namespace
}  // namespace inferd::kernels
