// SPDX-License-Identifier: Apache-2.0
// A mixture on the device: routing, sorting, grouped products, combining; ranks with a part of the
// experts, experts without rows, rows without experts.
#include "kernels/moe/moe_cuda.h"

#include "device_fixture.h"
#include "kernels/dequant/dequant.h"
#include "kernels/kernel_fixture.h"
#include "kernels/matmul/matmul_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace inferd::kernels::cuda {
namespace {

TEST(MoeCuda, RoutePicksTheBestLowerIndexFirst) {
  constexpr int kRows = 5, kExperts = 70, kTopK = 6;
  auto logits = RandomFloats(kRows * kExperts, 1);
  logits[3] = logits[40] = logits[69] = 9.0F;  // row 0: a tie of three
  for (const bool sigmoid : {false, true}) {
    for (const bool before : {false, true}) {
      for (const bool renormalize : {false, true}) {
        const DeviceArray<float> dl(logits), weight(kRows * kTopK);
        const DeviceArray<std::int32_t> expert(kRows * kTopK);
        RouteArgs args;
        args.logits = dl.get();
        args.rows = kRows;
        args.experts = kExperts;
        args.top_k = kTopK;
        args.sigmoid = sigmoid;
        args.softmax_before_topk = before;
        args.renormalize = renormalize;
        args.routed_scale = 2.5F;
        args.expert = expert.get();
        args.weight = weight.get();
        EXPECT_OK(Route(args, nullptr));
        std::vector<std::int32_t> want;
        std::vector<double> want_weight;
        for (int row = 0; row < kRows; ++row) {
          const float* l = logits.data() + row * kExperts;
          std::vector<std::int32_t> order(kExperts);
          for (int e = 0; e < kExperts; ++e) {
            order[static_cast<std::size_t>(e)] = e;
          }
          std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return l[a] > l[b]; });
          double all = 0, chosen = 0;
          const auto score = [&](int e) {
            return sigmoid ? 1 / (1 + std::exp(-static_cast<double>(l[e])))
                           : std::exp(static_cast<double>(l[e]));
          };
          for (int e = 0; e < kExperts; ++e) {
            all += score(order[static_cast<std::size_t>(e)]);
            chosen += e < kTopK ? score(order[static_cast<std::size_t>(e)]) : 0;
          }
          const double divisor = renormalize || (!sigmoid && !before) ? chosen
                                 : sigmoid                            ? 1.0
                                                                      : all;
          for (int i = 0; i < kTopK; ++i) {
            want.push_back(order[static_cast<std::size_t>(i)]);
            want_weight.push_back(score(want.back()) / divisor * 2.5);
          }
        }
        EXPECT_EQ(expert.Download(), want);
        EXPECT_LT(RelativeError(weight.Download(), want_weight), 3e-6);
      }
    }
  }
}

struct Sorted {
  std::vector<std::int32_t> begin, source, position;
};

Sorted Sort(const std::vector<std::int32_t>& expert, int first, int experts, int top_k) {
  const DeviceArray<std::int32_t> de(expert), begin(static_cast<std::size_t>(experts) + 1);
  const DeviceArray<std::int32_t> source(expert.size()), position(expert.size());
  EXPECT_OK(SortPairs({de.get(),
                       static_cast<std::int64_t>(expert.size()),
                       first,
                       experts,
                       top_k,
                       begin.get(),
                       source.get(),
                       position.get()},
                      nullptr));
  return {begin.Download(), source.Download(), position.Download()};
}

TEST(MoeCuda, SortKeepsTheOrderAndLeavesOthersOut) {
  const std::vector<std::int32_t> expert = {4, 7, 5, 4, -1, 4, 7, 9};
  const Sorted sorted = Sort(expert, 4, 5, 2);
  EXPECT_EQ(sorted.begin, (std::vector<std::int32_t>{0, 3, 4, 4, 6, 6}));
  EXPECT_EQ(sorted.position, (std::vector<std::int32_t>{0, 4, 3, 1, -1, 2, 5, -1}));
  EXPECT_EQ(std::vector<std::int32_t>(sorted.source.begin(), sorted.source.begin() + 6),
            (std::vector<std::int32_t>{0, 1, 2, 1, 0, 3}));
}

TEST(MoeCuda, SortOfManyPairs) {
  constexpr int kExperts = 37, kPairs = 1000;
  TestRandom random(2);
  std::vector<std::int32_t> expert(kPairs);
  for (auto& e : expert) {
    e = static_cast<std::int32_t>(random.Next() % (kExperts + 3)) - 1;
  }
  const Sorted sorted = Sort(expert, 0, kExperts, 4);
  int next = 0;
  for (int e = 0; e < kExperts; ++e) {
    EXPECT_EQ(sorted.begin[static_cast<std::size_t>(e)], next);
    for (std::size_t pair = 0; pair < kPairs; ++pair) {
      if (expert[pair] == e) {
        EXPECT_EQ(sorted.position[pair], next);
        EXPECT_EQ(sorted.source[static_cast<std::size_t>(next)], static_cast<int>(pair / 4));
        ++next;
      }
    }
  }
  EXPECT_EQ(sorted.begin[kExperts], next);
}

// x -> grouped product -> combine, against the same by single products.
TEST(MoeCuda, GroupedProductsHaveTheBitsOfSingleOnes) {
  constexpr std::int64_t kRows = 50, kN = 24, kK = 256;
  constexpr int kExperts = 3, kTopK = 2;
  for (const DType type : {DType::kBF16, DType::kQ4_K, DType::kF8E4M3}) {
    TestRandom random(3);
    const auto stored = RandomRows(type, kExperts * kN, kK, random);
    const std::int64_t expert_bytes = kN * RowBytes(type, kK);
    const DeviceArray<std::byte> dw(stored);
    std::vector<const std::byte*> pointers;
    for (int e = 0; e < kExperts; ++e) {
      pointers.push_back(dw.get() + e * expert_bytes);
    }
    std::vector<std::int32_t> expert;
    for (std::int64_t row = 0; row < kRows; ++row) {
      expert.push_back(row % 10 == 0 ? 1 : 0);  // expert 0 gets most, expert 2 nothing
      expert.push_back(row % 3 == 0 ? -1 : 1 - expert.back());
    }
    const auto x = RandomFloats(kRows * kK, 4);
    const auto scales = RandomFloats(kExperts, 8);
    const auto weight = RandomFloats(kRows * kTopK, 5);
    const DeviceArray<float> dx(x), dweight(weight), ds(scales), out(kRows * kTopK * kN),
        y(kRows * kN);
    const DeviceArray<const std::byte*> dp(pointers);
    const Sorted sorted = Sort(expert, 0, kExperts, kTopK);
    const DeviceArray<std::int32_t> begin(sorted.begin), source(sorted.source),
        position(sorted.position);
    GroupedArgs args;
    args.w.type = type;
    args.w.row_bytes = RowBytes(type, kK);
    args.w.n = kN;
    args.w.k = kK;
    if (type == DType::kF8E4M3) {
      args.w.scales = ds.get();
      args.w.scale_rows = kN;
      args.w.scale_k = kK;
      args.scale_stride = 1;
    }
    args.expert_rows = dp.get();
    args.experts = kExperts;
    args.expert_begin = begin.get();
    args.source = source.get();
    args.max_positions = kRows * kTopK;
    args.x = dx.get();
    args.ldx = kK;
    args.y = out.get();
    args.ldy = kN;
    EXPECT_OK(GroupedMatMul(args, nullptr));
    EXPECT_OK(Combine(
        {out.get(), kN, position.get(), dweight.get(), kRows, kTopK, kN, false, y.get(), kN},
        nullptr));
    std::vector<float> want(kRows * kN, 0.0F);
    for (int e = 0; e < kExperts; ++e) {
      Matrix w = args.w;
      w.rows = pointers[static_cast<std::size_t>(e)];
      w.scales = w.scales != nullptr ? w.scales + e : nullptr;
      const DeviceArray<float> single(kRows * kN);
      EXPECT_OK(MatMul(w, dx.get(), kK, kRows, nullptr, false, single.get(), kN, nullptr));
      const auto rows = single.Download();
      for (std::size_t pair = 0; pair < expert.size(); ++pair) {
        for (std::size_t i = 0; expert[pair] == e && i < kN; ++i) {
          const auto at = pair / kTopK * kN + i;
          want[at] = std::fma(weight[pair], rows[at], want[at]);
        }
      }
    }
    // Two slots are added in slot order, here in expert order: the same for a sum of at most two
    // but for the fma's rounding.
    const auto got = y.Download();
    EXPECT_LT(RelativeError(got, {want.begin(), want.end()}), 1e-6) << DTypeName(type);
  }
}

}  // namespace
}  // namespace inferd::kernels::cuda
