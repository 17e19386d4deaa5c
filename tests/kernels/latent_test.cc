// SPDX-License-Identifier: Apache-2.0
// Attention over a latent cache: every table and page type against the plain kernel, and a row
// alone against the same row in tiles.
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

constexpr KvValue kFormats[] = {
    KvValue::kF16, KvValue::kBf16, KvValue::kF32, KvValue::kFp8, KvValue::kInt8};

struct Shape {
  std::int64_t kv_rank, rope_dim;
  std::int64_t dim() const { return kv_rank + rope_dim; }
};

// Between two pages of the layer, where other layers lie.
constexpr std::size_t kGap = 192;

// One sequence of random tokens in shuffled pages; the memory ends with the last page.
class Tokens {
 public:
  Tokens(KvValue format, Shape shape, std::int64_t tokens)
      : format_(format),
        shape_(shape),
        page_bytes_(LatentPageBytes(format, shape.dim()) + kGap),
        pages_(static_cast<std::size_t>((tokens + kPageTokens - 1) / kPageTokens)),
        memory_(pages_.size() * page_bytes_ - kGap),
        q_(static_cast<std::size_t>(kAttentionRows * shape.dim())) {
    std::iota(pages_.begin(), pages_.end(), 0);
    TestRandom random(static_cast<std::uint64_t>(shape.dim() * 1000 + tokens));
    for (std::size_t i = pages_.size(); i > 1; --i) {
      std::swap(pages_[i - 1], pages_[random.Next() % i]);
    }
    std::vector<float> token(static_cast<std::size_t>(shape.dim()));
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::generate(token.begin(), token.end(), [&] { return random.Normal(); });
      const std::int32_t page = pages_[static_cast<std::size_t>(t / kPageTokens)];
      StoreLatent(format,
                  token.data(),
                  shape.dim(),
                  static_cast<int>(t % kPageTokens),
                  memory_.As<std::byte>() + static_cast<std::size_t>(page) * page_bytes_);
    }
    std::generate(q_.begin(), q_.end(), [&] { return random.Normal(); });
  }

  // Query rows [first, first + count) of the 12, row r at position pos[r].
  std::vector<float> Run(const KernelTable& table,
                         const std::vector<std::int64_t>& pos,
                         int first,
                         int count) const {
    std::vector<float> y(static_cast<std::size_t>(count * shape_.kv_rank), -9.0f);
    const float* q_rows[kAttentionRows];
    float* y_rows[kAttentionRows];
    for (int r = 0; r < count; ++r) {
      q_rows[r] = q_.data() + (first + r) * shape_.dim();
      y_rows[r] = y.data() + r * shape_.kv_rank;
    }
    LatentArgs args = {};
    args.rows = count;
    args.q = q_rows;
    args.y = y_rows;
    args.pos = pos.data() + first;
    args.dim = shape_.dim();
    args.kv_rank = shape_.kv_rank;
    args.format = format_;
    args.base = memory_.As<std::byte>();
    args.page_bytes = page_bytes_;
    args.pages = pages_.data();
    args.scale = 1 / std::sqrt(static_cast<float>(shape_.dim()));
    table.attention_latent(args);
    return y;
  }

 private:
  KvValue format_;
  Shape shape_;
  std::size_t page_bytes_;
  std::vector<std::int32_t> pages_;
  GuardedBytes memory_;
  std::vector<float> q_;
};

std::vector<std::int64_t> Positions(std::int64_t tokens) {
  std::vector<std::int64_t> pos(kAttentionRows);
  for (int r = 0; r < kAttentionRows; ++r) {
    pos[static_cast<std::size_t>(r)] = std::max<std::int64_t>(0, tokens - kAttentionRows + r);
  }
  return pos;
}

using Param = std::tuple<const KernelTable*, KvValue>;

class LatentAttention : public testing::TestWithParam<Param> {};

TEST_P(LatentAttention, MatchesThePlainKernel) {
  const auto [table, format] = GetParam();
  for (const Shape shape : {Shape{512, 64}, {256, 32}, {32, 16}, {48, 8}, {33, 6}}) {
    for (const std::int64_t tokens : {1, 31, 32, 33, 65, 130}) {
      const Tokens sequence(format, shape, tokens);
      const std::vector<std::int64_t> pos = Positions(tokens);
      const std::vector<float> expected = sequence.Run(ScalarKernels(), pos, 0, kAttentionRows);
      const std::vector<float> y = sequence.Run(*table, pos, 0, kAttentionRows);
      for (std::size_t i = 0; i < y.size(); ++i) {
        ASSERT_NEAR(y[i], expected[i], kAttentionTolerance) << shape.kv_rank << " " << tokens;
      }
    }
  }
}

TEST_P(LatentAttention, ARowAloneHasTheBitsOfTheRowInATile) {
  const auto [table, format] = GetParam();
  const Shape shape = {96, 24};
  for (const std::int64_t tokens : {12, 75, 140}) {
    const Tokens sequence(format, shape, tokens);
    // Positions far apart: short rows meet pages that are masked for them.
    std::vector<std::int64_t> pos = Positions(tokens);
    pos[0] = 0;
    pos[3] = tokens / 2;
    std::vector<float> alone;
    for (int r = 0; r < kAttentionRows; ++r) {
      const std::vector<float> y = sequence.Run(*table, pos, r, 1);
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (int count = 2; count <= kAttentionRows; ++count) {
      const int first = kAttentionRows - count;
      const std::vector<float> y = sequence.Run(*table, pos, first, count);
      EXPECT_EQ(std::memcmp(y.data(), alone.data() + first * shape.kv_rank, y.size() * 4), 0)
          << tokens << " " << count;
    }
  }
}

// A token that sees only itself gives its latent back, as the type rounds it: what the plain
// kernel, the reference of the others, is held to.
TEST(LatentPage, KeepsWhatTheTypeCan) {
  constexpr double kRelative[] = {0x1p-11, 0x1p-8, 0, 0x1p-4, 0};
  for (const KvValue format : kFormats) {
    constexpr std::int64_t kDim = 40, kRank = 33;
    std::vector<float> token(kDim);
    TestRandom random(5);
    std::generate(token.begin(), token.end(), [&] { return 3 * random.Normal(); });
    std::vector<std::byte> page(LatentPageBytes(format, kDim));
    StoreLatent(format, token.data(), kDim, 0, page.data());
    const std::vector<float> q(kDim, 0.1F);
    std::vector<float> y(kRank);
    const float* q_row = q.data();
    float* y_row = y.data();
    const std::int64_t pos = 0;
    const std::int32_t number = 0;
    LatentArgs args = {};
    args.rows = 1;
    args.q = &q_row;
    args.y = &y_row;
    args.pos = &pos;
    args.dim = kDim;
    args.kv_rank = kRank;
    args.format = format;
    args.base = page.data();
    args.pages = &number;
    args.scale = 1;
    ScalarKernels().attention_latent(args);
    const double step = format == KvValue::kInt8 ? 0.51 / 127 * 12 : 0x1p-10;
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double bound = kRelative[static_cast<int>(format)] * std::fabs(token[i]);
      EXPECT_NEAR(y[i], token[i], bound + (format == KvValue::kF32 ? 0 : step))
          << static_cast<int>(format);
    }
  }
}

std::string ParamName(const testing::TestParamInfo<Param>& info) {
  std::string name = std::get<0>(info.param)->name;
  std::replace(name.begin(), name.end(), '-', '_');
  const char* formats[] = {"_half", "_bf16", "_float", "_fp8", "_int8"};
  return name + formats[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(All,
                         LatentAttention,
                         testing::Combine(testing::ValuesIn(Tables()), testing::ValuesIn(kFormats)),
                         ParamName);

}  // namespace
}  // namespace inferd::kernels
