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
#include <tuple>

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

// As DeepSeek's models route: groups first, a bias for the choice, weights of the scores alone.
TEST(MoeCuda, RouteByGroupsAndBias) {
  constexpr int kRows = 4, kExperts = 64, kTopK = 6;
  const auto logits = RandomFloats(kRows * kExperts, 3), bias = RandomFloats(kExperts, 4, 0.3F);
  for (const bool sigmoid : {false, true}) {
    for (const bool biased : {false, true}) {
      for (const int best : {1, 2}) {
        for (const int groups : {1, 4, 32}) {
          const int kept = groups == 4 ? 2 : groups == 32 ? 5 : 1;
          const DeviceArray<float> dl(logits), db(bias), weight(kRows * kTopK);
          const DeviceArray<std::int32_t> expert(kRows * kTopK);
          RouteArgs args;
          args.logits = dl.get();
          args.rows = kRows;
          args.experts = kExperts;
          args.top_k = kTopK;
          args.sigmoid = sigmoid;
          args.softmax_before_topk = true;
          args.renormalize = biased;
          args.bias = biased ? db.get() : nullptr;
          args.groups = groups;
          args.top_groups = kept;
          args.group_best = best;
          args.expert = expert.get();
          args.weight = weight.get();
          EXPECT_OK(Route(args, nullptr));
          std::vector<std::int32_t> want;
          std::vector<double> want_weight;
          for (int row = 0; row < kRows; ++row) {
            const float* l = logits.data() + row * kExperts;
            double all = 0, chosen = 0;
            std::vector<double> score(kExperts), choice(kExperts);
            for (std::size_t e = 0; e < kExperts; ++e) {
              const double x = l[e];
              score[e] = sigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x);
              all += score[e];
            }
            for (std::size_t e = 0; e < kExperts; ++e) {
              score[e] /= sigmoid ? 1 : all;
              choice[e] = score[e] + (biased ? bias[e] : 0.0F);
            }
            const int size = kExperts / groups;
            std::vector<std::pair<double, int>> by_group;
            for (int g = 0; g < groups; ++g) {
              std::vector<double> of(choice.begin() + g * size, choice.begin() + (g + 1) * size);
              std::sort(of.rbegin(), of.rend());
              by_group.emplace_back(-(best == 2 ? of[0] + of[1] : of[0]), g);
            }
            std::sort(by_group.begin(), by_group.end());
            std::vector<std::pair<double, int>> order;
            for (int g = 0; g < kept; ++g) {
              const int first = by_group[static_cast<std::size_t>(g)].second * size;
              for (int e = first; e < first + size; ++e) {
                order.emplace_back(-choice[static_cast<std::size_t>(e)], e);
              }
            }
            std::sort(order.begin(), order.end());
            for (std::size_t i = 0; i < kTopK; ++i) {
              chosen += score[static_cast<std::size_t>(order[i].second)];
            }
            for (std::size_t i = 0; i < kTopK; ++i) {
              want.push_back(order[i].second);
              want_weight.push_back(score[static_cast<std::size_t>(order[i].second)] /
                                    (biased ? chosen : 1));
            }
          }
          EXPECT_EQ(expert.Download(), want) << sigmoid << biased << best << " " << groups;
          EXPECT_LT(RelativeError(weight.Download(), want_weight), 3e-6);
        }
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

struct Masked {
  std::vector<std::int32_t> expert, count, pair, source, position;
};

// The lists are as long as they may get; what has no meaning is -1.
Masked Mask(const std::vector<std::int32_t>& expert, int first, int experts, int top_k) {
  MaskPairsArgs args;
  args.pairs = static_cast<std::int64_t>(expert.size());
  args.experts = experts;
  const auto slots = static_cast<std::size_t>(args.Slots());
  const DeviceArray<std::int32_t> de(expert), slot(slots), count(slots), position(expert.size());
  const DeviceArray<std::int32_t> pair(slots * expert.size()), source(slots * expert.size());
  args.expert = de.get();
  args.first = first;
  args.top_k = top_k;
  args.slot_expert = slot.get();
  args.slot_count = count.get();
  args.pair = pair.get();
  args.source = source.get();
  args.position = position.get();
  EXPECT_OK(MaskPairs(args, nullptr));
  return {
      slot.Download(), count.Download(), pair.Download(), source.Download(), position.Download()};
}

TEST(MoeCuda, MaskListsTheExpertsInUse) {
  const std::vector<std::int32_t> expert = {4, 7, 5, 4, -1, 4, 7, 9};
  const Masked masked = Mask(expert, 4, 5, 2);
  EXPECT_EQ(masked.expert, (std::vector<std::int32_t>{0, 3, 1, 0, 0}));
  EXPECT_EQ(masked.count, (std::vector<std::int32_t>{3, 2, 1, 0, 0}));
  EXPECT_EQ(masked.position, (std::vector<std::int32_t>{0, 1, 2, 3, -1, 5, 6, -1}));
  const std::vector<std::int32_t> pair = {
      0, 3, 5, -1, -1, -1, -1, -1, 1, 6, -1, -1, -1, -1, -1, -1, 2, -1};
  EXPECT_EQ(std::vector<std::int32_t>(masked.pair.begin(), masked.pair.begin() + 18), pair);
  const std::vector<std::int32_t> source = {0, 1, 2, -1, -1, -1, -1, -1, 0, 3};
  EXPECT_EQ(std::vector<std::int32_t>(masked.source.begin(), masked.source.begin() + 10), source);
}

// Odd counts of experts; ids of other ranks and -1; all tokens to one expert; every pair its own.
TEST(MoeCuda, MaskOfManyPairs) {
  TestRandom random(6);
  for (const auto& [experts, pairs, top_k, spread] : {std::tuple(37, 256, 4, 40),
                                                      std::tuple(128, 256, 8, 128),
                                                      std::tuple(513, 99, 3, 700),
                                                      std::tuple(7, 255, 5, 1),
                                                      std::tuple(1, 33, 1, 3)}) {
    std::vector<std::int32_t> expert(static_cast<std::size_t>(pairs));
    for (auto& e : expert) {
      e = static_cast<std::int32_t>(random.Next() % static_cast<unsigned>(spread)) +
          (spread > 1 ? -1 : 3);
    }
    const Masked masked = Mask(expert, 0, experts, top_k);
    std::vector<std::int32_t> in_use;
    for (const std::int32_t e : expert) {
      if (e >= 0 && e < experts && std::find(in_use.begin(), in_use.end(), e) == in_use.end()) {
        in_use.push_back(e);
      }
    }
    for (std::size_t slot = 0; slot < masked.expert.size(); ++slot) {
      std::vector<std::int32_t> want, want_rows;
      for (int pair = 0; slot < in_use.size() && pair < pairs; ++pair) {
        if (expert[static_cast<std::size_t>(pair)] == in_use[slot]) {
          want.push_back(pair);
          want_rows.push_back(pair / top_k);
        }
      }
      EXPECT_EQ(masked.expert[slot], slot < in_use.size() ? in_use[slot] : 0);
      ASSERT_EQ(masked.count[slot], static_cast<int>(want.size())) << experts;
      const auto at = static_cast<std::ptrdiff_t>(slot) * pairs;
      const auto end = at + static_cast<std::ptrdiff_t>(want.size());
      EXPECT_EQ(std::vector<std::int32_t>(masked.pair.begin() + at, masked.pair.begin() + end),
                want);
      EXPECT_EQ(std::vector<std::int32_t>(masked.source.begin() + at, masked.source.begin() + end),
                want_rows);
    }
    for (int pair = 0; pair < pairs; ++pair) {
      const std::int32_t e = expert[static_cast<std::size_t>(pair)];
      EXPECT_EQ(masked.position[static_cast<std::size_t>(pair)], e >= 0 && e < experts ? pair : -1);
    }
  }
}

TEST(MoeCuda, MaskRefusesMorePairsThanItCanTake) {
  MaskPairsArgs args;
  args.experts = 8;
  args.pairs = MaskPairsArgs::kMostPairs + 1;
  EXPECT_EQ(MaskPairs(args, nullptr), Status::kInvalidValue);
}

// One product and a second one over its results, in both layouts: the same bits.
TEST(MoeCuda, MaskedProductsHaveTheBitsOfContiguousOnes) {
  constexpr std::int64_t kN = 40, kK = 96;
  constexpr int kExperts = 5, kTopK = 2, kFirst = 2;
  for (const auto& [rows, spread, type] : {std::tuple(1, 9, DType::kBF16),
                                           std::tuple(7, 9, DType::kF8E4M3),
                                           std::tuple(40, 1, DType::kQ4_0),
                                           std::tuple(128, 9, DType::kF32),
                                           std::tuple(128, 2, DType::kBF16)}) {
    const int pairs = rows * kTopK;
    TestRandom random(7);
    const auto up_rows = RandomRows(type, kExperts * kN, kK, random);
    const auto down_rows = RandomRows(DType::kBF16, kExperts * kK, kN, random);
    std::vector<std::int32_t> expert;
    for (int pair = 0; pair < pairs; ++pair) {
      const auto e = static_cast<std::int32_t>(random.Next() % static_cast<unsigned>(spread));
      expert.push_back(spread > 2 ? e - 1 : e + kFirst);
    }
    const auto x = RandomFloats(static_cast<std::size_t>(rows * kK), 8);
    const auto scales = RandomFloats(kExperts, 9);
    const auto weight = RandomFloats(static_cast<std::size_t>(pairs), 10);
    const DeviceArray<std::byte> du(up_rows), dd(down_rows);
    const DeviceArray<float> dx(x), ds(scales), dweight(weight);
    std::vector<const std::byte*> up_of, down_of;
    for (std::int64_t e = 0; e < kExperts; ++e) {
      up_of.push_back(du.get() + e * kN * RowBytes(type, kK));
      down_of.push_back(dd.get() + e * kK * RowBytes(DType::kBF16, kN));
    }
    const DeviceArray<const std::byte*> dup(up_of), ddown(down_of);
    const Sorted sorted = Sort(expert, kFirst, kExperts, kTopK);
    const Masked masked = Mask(expert, kFirst, kExperts, kTopK);
    const DeviceArray<std::int32_t> begin(sorted.begin), sorted_rows(sorted.source),
        sorted_position(sorted.position), slot(masked.expert), count(masked.count),
        pair(masked.pair), masked_rows(masked.source), masked_position(masked.position);
    const auto run = [&](bool by_mask) {
      const DeviceArray<float> mid(static_cast<std::size_t>(pairs * kN)),
          out(static_cast<std::size_t>(pairs * kK)), y(static_cast<std::size_t>(rows * kK));
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
      args.expert_rows = dup.get();
      args.experts = by_mask ? static_cast<int>(masked.expert.size()) : kExperts;
      args.max_positions = pairs;
      if (by_mask) {
        args.slot_expert = slot.get();
        args.slot_count = count.get();
        args.source = masked_rows.get();
        args.target = pair.get();
        args.slot_stride = pairs;
      } else {
        args.expert_begin = begin.get();
        args.source = sorted_rows.get();
      }
      args.x = dx.get();
      args.ldx = kK;
      args.y = mid.get();
      args.ldy = kN;
      EXPECT_OK(GroupedMatMul(args, nullptr));
      args.w = {};
      args.w.type = DType::kBF16;
      args.w.row_bytes = RowBytes(DType::kBF16, kN);
      args.w.n = kK;
      args.w.k = kN;
      args.scale_stride = 0;
      args.expert_rows = ddown.get();
      args.source = by_mask ? pair.get() : nullptr;
      args.x = mid.get();
      args.ldx = kN;
      args.y = out.get();
      args.ldy = kK;
      EXPECT_OK(GroupedMatMul(args, nullptr));
      EXPECT_OK(Combine({out.get(),
                         kK,
                         by_mask ? masked_position.get() : sorted_position.get(),
                         dweight.get(),
                         rows,
                         kTopK,
                         kK,
                         false,
                         y.get(),
                         kK},
                        nullptr));
      return y.Download();
    };
    const auto contiguous = run(false);
    EXPECT_EQ(run(true), contiguous) << rows << " rows of " << DTypeName(type);
    EXPECT_GT(*std::max_element(contiguous.begin(), contiguous.end()), 0);
  }
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
