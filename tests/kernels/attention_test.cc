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

enum class Page { kHalf, kBf16, kFloat };

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
        page_bytes_(HeadPageBytes(kind == Page::kFloat ? 4 : 2, head_dim) + kGap),
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
      const auto store = kind == Page::kHalf   ? StoreKvHalf
                         : kind == Page::kBf16 ? StoreKvBf16
                                               : StoreKvFloat;
      store(kv.data(), kv.data() + head_dim, head_dim, static_cast<int>(t % kPageTokens), page);
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
    (kind_ == Page::kHalf   ? table.attention_half
     : kind_ == Page::kBf16 ? table.attention_bf16
                            : table.attention_float)(args);
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
  const char* kinds[] = {"_half", "_bf16", "_float"};
  return name + kinds[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(All,
                         Attention,
                         testing::Combine(testing::ValuesIn(Tables()),
                                          testing::Values(Page::kHalf, Page::kBf16, Page::kFloat)),
                         ParamName);

}  // namespace
}  // namespace inferd::kernels
