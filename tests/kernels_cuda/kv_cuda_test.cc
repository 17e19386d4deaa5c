// SPDX-License-Identifier: Apache-2.0
// What QkvPost leaves in the pages, for every format, against the values it was given.
#include "device_fixture.h"
#include "kernels/attention/qkv_cuda.h"
#include "stored_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

namespace inferd::kernels::cuda {
namespace {

constexpr int kDim = 48, kHeads = 2, kRows = 3;

/// How far a stored value may be from the one given: `relative` of it, `steps` of the token's
/// largest value.
struct Bound {
  KvFormat format;
  double relative, steps;
};

class QkvPostWrite : public testing::TestWithParam<Bound> {
 protected:
  static float Largest(const std::vector<float>& values, int row, int head) {
    const auto from = values.begin() + (row * kHeads + head) * kDim;
    float top = 0;
    std::for_each(from, from + kDim, [&](float x) { top = std::max(top, std::fabs(x)); });
    return top;
  }

  // Each run of 16 (the power of two in 48) times the Hadamard matrix over 4.
  static void Spread(std::vector<float>* values) {
    static_assert((kDim & -kDim) == 16);
    for (std::size_t begin = 0; begin < values->size(); begin += 16) {
      double sums[16] = {};
      for (unsigned i = 0; i < 16; ++i) {
        for (unsigned j = 0; j < 16; ++j) {
          sums[i] += (std::popcount(i & j) % 2 == 0 ? 0.25 : -0.25) * (*values)[begin + j];
        }
      }
      std::copy(sums, sums + 16, values->begin() + static_cast<std::ptrdiff_t>(begin));
    }
  }
};

TEST_P(QkvPostWrite, KeepsWhatTheFormatCanAndTouchesNothingElse) {
  const std::vector<std::int32_t> positions = {33, 0, -1};  // of page 1, page 0, and padding
  auto k = RandomFloats(kRows * kHeads * kDim, 1, 3), v = RandomFloats(kRows * kHeads * kDim, 2);
  std::fill(v.begin() + kHeads * kDim, v.begin() + (kHeads + 1) * kDim, 0.0F);  // a token of zeros
  k[5] = 600;                                                                   // beyond E4M3
  const DeviceArray<float> dk(k), dv(v);
  const DeviceArray<std::int32_t> position(positions), pages({1, 0}),
      sequence(std::vector<std::int32_t>(kRows, 0));
  const std::size_t page_bytes = KvBytesPerPage(GetParam().format, kHeads, kDim);
  const DeviceArray<std::byte> memory(2 * page_bytes);
  QkvPostArgs args;
  args.k = dk.get();
  args.v = dv.get();
  args.ldk = args.ldv = kHeads * kDim;
  args.step = {kRows, position.get(), sequence.get(), pages.get(), 2};
  args.kv.format = GetParam().format;
  args.kv.base = memory.get();
  args.kv.page_bytes = static_cast<std::int64_t>(page_bytes);
  args.kv.kv_heads = kHeads;
  args.kv.head_dim = kDim;
  EXPECT_OK(QkvPost(args, nullptr));
  if (GetParam().format == KvFormat::kInt8) {
    Spread(&k);
  }
  const std::vector<std::byte> got = memory.Download();
  for (const int row : {0, 1}) {
    const std::byte* page = got.data() + (row == 0 ? 0 : page_bytes);
    const int slot = row == 0 ? 1 : 0;
    for (int head = 0; head < kHeads; ++head) {
      for (const int which : {0, 1}) {
        const auto& given = which == 0 ? k : v;
        for (int i = 0; i < kDim; ++i) {
          double want = given[static_cast<std::size_t>((row * kHeads + head) * kDim + i)];
          want = GetParam().format == KvFormat::kF8E4M3 ? std::min(want, 448.0) : want;
          const double step = 0x1p-10 * (GetParam().relative > 0x1p-6 ? 1 : 0);  // E4M3's denormals
          EXPECT_NEAR(StoredKv(page, GetParam().format, kHeads, kDim, head, which, slot, i),
                      want,
                      GetParam().relative * std::fabs(want) + step +
                          GetParam().steps * Largest(given, row, head))
              << row << " " << head << " " << which << " " << i;
        }
      }
    }
  }
  const std::size_t untouched =
      static_cast<std::size_t>(std::count(got.begin(), got.end(), std::byte{0xFF}));
  const std::size_t written = 2 * page_bytes / kCudaPageTokens;  // two tokens' share of a page
  EXPECT_GE(untouched, 2 * page_bytes - written);
}

std::string NameOf(const testing::TestParamInfo<Bound>& bound) {
  constexpr const char* kNames[] = {"F16", "BF16", "F32", "FP8", "Int8"};
  return kNames[static_cast<int>(bound.param.format)];
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         QkvPostWrite,
                         testing::Values(Bound{KvFormat::kF32, 0, 0},
                                         Bound{KvFormat::kF16, 0x1p-11, 0x1p-24},
                                         Bound{KvFormat::kBf16, 0x1p-8, 0},
                                         Bound{KvFormat::kF8E4M3, 0x1p-4, 0},
                                         Bound{KvFormat::kInt8, 0, 0.501 / 127}),
                         NameOf);

}  // namespace
}  // namespace inferd::kernels::cuda
