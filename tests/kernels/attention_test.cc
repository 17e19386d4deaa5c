// SPDX-License-Identifier: Apache-2.0
// Attention of every table, page type and head size against the plain kernel, and a row alone
// against the same row in tiles.
#include "kernel_fixture.h"
#include "kernels/attention/kv_page.h"
#include "tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace inferd::kernels {
namespace {

enum class Page { kHalf, kBf16, kFloat, kFp8, kInt8 };

std::size_t ValueBytes(Page kind) {
  return kind == Page::kFloat ? 4 : kind == Page::kHalf || kind == Page::kBf16 ? 2 : 1;
}

auto StorerOf(Page kind) {
  constexpr decltype(&StoreKvHalf) kStorers[] = {
      StoreKvHalf, StoreKvBf16, StoreKvFloat, StoreKvFp8, StoreKvInt8};
  return kStorers[static_cast<int>(kind)];
}

auto AttentionOf(const KernelTable& table, Page kind) {
  const decltype(table.attention_half) all[] = {table.attention_half,
                                                table.attention_bf16,
                                                table.attention_float,
                                                table.attention_fp8,
                                                table.attention_int8};
  return all[static_cast<int>(kind)];
}

struct Options {
  std::int64_t window = 0;
  float softcap = 0;
  bool sinks = false;
};

// Between two pages of a head, where other heads and layers lie.
constexpr std::size_t kGap = 192;

// One sequence with random K and V in shuffled pages.
class Sequence {
 public:
  Sequence(Page kind, std::int64_t head_dim, std::int64_t tokens)
      : kind_(kind),
        head_dim_(head_dim),
        page_bytes_(HeadPageBytes(ValueBytes(kind), head_dim) +
                    (kind == Page::kInt8 ? kHeadScaleBytes : 0) + kGap),
        pages_(static_cast<std::size_t>((tokens + kPageTokens - 1) / kPageTokens)),
        memory_(pages_.size() * page_bytes_ - kGap) {
    std::iota(pages_.begin(), pages_.end(), 0);
    TestRandom random(static_cast<std::uint64_t>(head_dim * 1000 + tokens));
    for (std::size_t i = pages_.size(); i > 1; --i) {
      std::swap(pages_[i - 1], pages_[random.Next() % i]);
    }
    std::vector<float> kv(static_cast<std::size_t>(2 * head_dim));
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (float& v : kv) {
        v = random.Normal();
      }
      auto* page =
          reinterpret_cast<std::byte*>(memory_.data()) +
          static_cast<std::size_t>(pages_[static_cast<std::size_t>(t / kPageTokens)]) * page_bytes_;
      StorerOf(kind)(
          kv.data(), kv.data() + head_dim, head_dim, static_cast<int>(t % kPageTokens), page);
    }
    q_.resize(static_cast<std::size_t>(kAttentionRows * head_dim));
    for (float& v : q_) {
      v = random.Normal();
    }
    for (float& v : sinks_) {
      v = 2 * random.Normal();
    }
  }

  // Query rows [first, first + count) of the 12, row r at position pos[r].
  std::vector<float> Run(const KernelTable& table,
                         const std::vector<std::int64_t>& pos,
                         int first,
                         int count,
                         const Options& options,
                         bool stream = true) {
    std::vector<float> y(static_cast<std::size_t>(count * head_dim_), -9.0f);
    const float* q_rows[kAttentionRows];
    float* y_rows[kAttentionRows];
    for (int r = 0; r < count; ++r) {
      q_rows[r] = q_.data() + (first + r) * head_dim_;
      y_rows[r] = y.data() + r * head_dim_;
    }
    AttentionArgs args = {};
    args.rows = count;
    args.q = q_rows;
    args.y = y_rows;
    args.pos = pos.data() + first;
    args.sink = options.sinks ? sinks_ + first : nullptr;
    args.head_dim = head_dim_;
    args.base = reinterpret_cast<const std::byte*>(memory_.data());
    args.page_bytes = page_bytes_;
    args.pages = pages_.data();
    args.scale = 1 / std::sqrt(static_cast<float>(head_dim_));
    args.softcap = options.softcap;
    args.window = options.window;
    args.stream = stream;
    AttentionOf(table, kind_)(args);
    return y;
  }

 private:
  Page kind_;
  std::int64_t head_dim_;
  std::size_t page_bytes_;
  std::vector<std::int32_t> pages_;
  GuardedBytes memory_;
  std::vector<float> q_;
  float sinks_[kAttentionRows];
};

constexpr Options kAll[] = {{},
                            {.window = 20},
                            {.window = 70},
                            {.softcap = 3},
                            {.sinks = true},
                            {.window = 33, .softcap = 5, .sinks = true}};

std::vector<std::int64_t> Positions(std::int64_t tokens) {
  std::vector<std::int64_t> pos(kAttentionRows);
  for (int r = 0; r < kAttentionRows; ++r) {
    pos[static_cast<std::size_t>(r)] = std::max<std::int64_t>(0, tokens - kAttentionRows + r);
  }
  return pos;
}

using Param = std::tuple<const KernelTable*, Page>;

class Attention : public testing::TestWithParam<Param> {};

TEST_P(Attention, MatchesThePlainKernel) {
  const auto [table, kind] = GetParam();
  for (const std::int64_t head_dim : {16, 64, 80, 96, 128, 256}) {
    for (const std::int64_t tokens : {1, 5, 31, 32, 33, 64, 65, 130, 200}) {
      Sequence sequence(kind, head_dim, tokens);
      const std::vector<std::int64_t> pos = Positions(tokens);
      for (const Options& options : kAll) {
        const std::vector<float> expected =
            sequence.Run(ScalarKernels(), pos, 0, kAttentionRows, options);
        const std::vector<float> y = sequence.Run(*table, pos, 0, kAttentionRows, options);
        for (std::size_t i = 0; i < y.size(); ++i) {
          ASSERT_NEAR(y[i], expected[i], kAttentionTolerance)
              << head_dim << " " << tokens << " " << options.window;
        }
      }
    }
  }
}

TEST_P(Attention, ARowAloneHasTheBitsOfTheRowInATile) {
  const auto [table, kind] = GetParam();
  for (const std::int64_t head_dim : {64, 80, 128}) {
    for (const std::int64_t tokens : {12, 75, 140, 300}) {
      Sequence sequence(kind, head_dim, tokens);
      // Positions far apart: short rows meet chunks that are masked for them.
      std::vector<std::int64_t> pos = Positions(tokens);
      pos[0] = 0;
      pos[3] = tokens / 2;
      for (const Options& options : kAll) {
        std::vector<float> alone;
        for (int r = 0; r < kAttentionRows; ++r) {
          const std::vector<float> y = sequence.Run(*table, pos, r, 1, options, r % 2 == 0);
          alone.insert(alone.end(), y.begin(), y.end());
        }
        for (int count = 2; count <= kAttentionRows; ++count) {
          const int first = kAttentionRows - count;
          const std::vector<float> y =
              sequence.Run(*table, pos, first, count, options, count % 2 == 0);
          EXPECT_EQ(std::memcmp(y.data(), alone.data() + first * head_dim, y.size() * 4), 0)
              << head_dim << " " << tokens << " " << count;
        }
      }
    }
  }
}

std::string ParamName(const testing::TestParamInfo<Param>& info) {
  std::string name = std::get<0>(info.param)->name;
  std::replace(name.begin(), name.end(), '-', '_');
  const char* kinds[] = {"_half", "_bf16", "_float", "_fp8", "_int8"};
  return name + kinds[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Attention,
    testing::Combine(
        testing::ValuesIn(Tables()),
        testing::Values(Page::kHalf, Page::kBf16, Page::kFloat, Page::kFp8, Page::kInt8)),
    ParamName);

// What is read back by a token that sees only itself is its V, as the type rounds it.
TEST(KvPage, KeepsWhatTheTypeCan) {
  struct Bound {
    Page kind;
    double relative;  // of each value
    double absolute;  // share of the token's largest value
  };
  for (const Bound& bound : {Bound{Page::kHalf, 0x1p-11, 0},
                             Bound{Page::kBf16, 0x1p-8, 0},
                             Bound{Page::kFloat, 0, 0},
                             Bound{Page::kFp8, 0x1p-4, 0},
                             Bound{Page::kInt8, 0, 0.51 / 127}}) {
    constexpr int kDim = 64;
    std::vector<float> v(kDim);
    TestRandom random(7);
    float top = 0;
    for (int i = 0; i < kDim; ++i) {
      v[static_cast<std::size_t>(i)] = random.Normal() * (i % 2 == 0 ? 1.0F : 20.0F);
      top = std::max(top, std::fabs(v[static_cast<std::size_t>(i)]));
    }
    const std::vector<float> k(v.rbegin(), v.rend());
    std::vector<std::byte> page(HeadPageBytes(4, kDim) + kHeadScaleBytes);
    StorerOf(bound.kind)(k.data(), v.data(), kDim, 0, page.data());
    std::vector<float> q(kDim);
    std::vector<float> y(kDim);
    const float* q_row = q.data();
    float* y_row = y.data();
    const std::int64_t pos = 0;
    const std::int32_t number = 0;
    AttentionArgs args = {};
    args.rows = 1;
    args.q = &q_row;
    args.y = &y_row;
    args.pos = &pos;
    args.head_dim = kDim;
    args.base = page.data();
    args.pages = &number;
    args.scale = 1;
    AttentionOf(ScalarKernels(), bound.kind)(args);
    for (std::size_t i = 0; i < kDim; ++i) {
      EXPECT_NEAR(y[i], v[i], bound.relative * std::fabs(v[i]) + bound.absolute * top + 0x1p-10)
          << static_cast<int>(bound.kind);
    }
  }
}

TEST(KvPage, Fp8StopsAt448AndHoldsEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const float value = Fp8ToFloat(static_cast<std::uint8_t>(code));
    if (std::isnan(value)) {
      continue;
    }
    const std::vector<float> x(16, value);
    std::byte page[2 * kPageTokens * 16];
    StoreKvFp8(x.data(), x.data(), 16, 3, page);
    EXPECT_EQ(static_cast<int>(page[3]), code);                           // K of d 0
    EXPECT_EQ(static_cast<int>(page[(kPageTokens + 3) * 16 + 5]), code);  // V of d 5
  }
  const std::vector<float> big = {449, -1e9F, INFINITY, 460, -449, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  std::byte page[2 * kPageTokens * 16];
  StoreKvFp8(big.data(), big.data(), 16, 0, page);
  for (const int i : {0, 1, 2, 3, 4}) {
    EXPECT_EQ(std::fabs(Fp8ToFloat(static_cast<std::uint8_t>(page[i * kPageTokens]))), 448);
  }
}

// Keys with one large channel, as Qwen2's have: spread, their int8 products with queries have a
// small part of the error.
TEST(KvPage, SpreadingKeepsProductsAndSavesThemFromOutliers) {
  for (const std::int64_t dim : {16, 48, 64, 80, 128}) {
    const auto size = static_cast<std::size_t>(dim);
    TestRandom random(11);
    std::vector<float> q(size), k(size);
    const auto product = [&] {
      double sum = 0;
      for (std::size_t i = 0; i < size; ++i) {
        sum += static_cast<double>(q[i]) * k[i];
      }
      return sum;
    };
    const auto stored_product = [&] {
      std::vector<std::byte> page(HeadPageBytes(1, dim) + kHeadScaleBytes);
      StoreKvInt8(k.data(), k.data(), dim, 0, page.data());
      float scale;
      std::memcpy(&scale, page.data() + HeadPageBytes(1, dim), 4);
      double sum = 0;
      for (std::size_t i = 0; i < size; ++i) {
        sum += static_cast<double>(q[i]) * scale * static_cast<std::int8_t>(page[i * kPageTokens]);
      }
      return sum;
    };
    double plain = 0, spread = 0;
    for (int draw = 0; draw < 40; ++draw) {
      for (std::size_t i = 0; i < size; ++i) {
        q[i] = random.Normal();
        k[i] = random.Normal() * (i == 5 ? 100.0F : 1.0F);
      }
      const double exact = product();
      plain += std::pow(stored_product() - exact, 2);
      SpreadHead(q.data(), dim);
      SpreadHead(k.data(), dim);
      EXPECT_NEAR(product(), exact, 1e-5 * std::fabs(exact) + 1e-3) << dim;
      spread += std::pow(stored_product() - exact, 2);
    }
    EXPECT_LT(std::sqrt(spread), 0.5 * std::sqrt(plain)) << dim;
  }
}

TEST(KvPage, Int8KeepsAZeroTokenZero) {
  const std::vector<float> zero(16);
  std::vector<std::byte> page(HeadPageBytes(1, 16) + kHeadScaleBytes, std::byte{9});
  StoreKvInt8(zero.data(), zero.data(), 16, 1, page.data());
  float scale = -1;
  std::memcpy(&scale, page.data() + HeadPageBytes(1, 16) + 4, 4);
  EXPECT_EQ(scale, 0);
  EXPECT_EQ(page[1], std::byte{0});
}

}  // namespace
}  // namespace inferd::kernels
