// SPDX-License-Identifier: Apache-2.0
// Embedding on the device: types, ids of other ranks, odd widths.
#include "kernels/embedding/embedding_cuda.h"

#include "device_fixture.h"
#include "kernels/dequant/dequant.h"
#include "kernels/types.h"

#include <gtest/gtest.h>

namespace inferd::kernels::cuda {
namespace {

// Bytes of `values` stored as `type`.
std::vector<std::byte> Store(DType type, const std::vector<float>& values) {
  std::vector<std::byte> bytes;
  for (const float value : values) {
    const std::uint32_t bits = type == DType::kF32   ? FloatToBits(value)
                               : type == DType::kF16 ? FloatToHalf(value)
                                                     : FloatToBf16(value);
    const auto* from = reinterpret_cast<const std::byte*>(&bits);
    bytes.insert(bytes.end(), from, from + BlockBytes(type));
  }
  return bytes;
}

TEST(EmbeddingCuda, RowsOfTheTableAndZerosOutsideIt) {
  constexpr std::int64_t kHidden = 77, kTableRows = 9, kFirst = 20;
  // The last four stand for tokens that were drawn, one of which failed and one is another rank's.
  const std::vector<std::int32_t> ids = {20, 28, 25, 19, 29, 25, 0, -1, -2, -4, -3, -5};
  const std::vector<std::int32_t> drawn = {27, -1, 22, 30};
  const std::vector<std::int32_t> meant = {20, 28, 25, 19, 29, 25, 0, -1, 27, 22, -1, 30};
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto table = Store(type, RandomFloats(kTableRows * kHidden, 1));
    const DeviceArray<std::byte> dt(table);
    const DeviceArray<std::int32_t> di(ids), dd(drawn);
    const DeviceArray<float> x(ids.size() * kHidden);
    EXPECT_OK(Embed(type,
                    dt.get(),
                    kTableRows,
                    kFirst,
                    di.get(),
                    dd.get(),
                    static_cast<std::int64_t>(ids.size()),
                    kHidden,
                    1.5F,
                    x.get(),
                    kHidden,
                    nullptr));
    std::vector<float> want;
    for (const std::int32_t id : meant) {
      std::vector<float> row(kHidden, 0.0F);
      if (id >= kFirst && id < kFirst + kTableRows) {
        DequantRow(
            type, table.data() + (id - kFirst) * kHidden * BlockBytes(type), kHidden, row.data());
      }
      for (const float value : row) {
        want.push_back(value * 1.5F);
      }
    }
    EXPECT_EQ(x.Download(), want);
  }
}

TEST(EmbeddingCuda, ATypeWithoutAKernelIsRefused) {
  const DeviceArray<std::byte> table(16);
  const DeviceArray<std::int32_t> ids(std::vector<std::int32_t>{0});
  const DeviceArray<float> x(4);
  EXPECT_EQ(Embed(DType::kI32, table.get(), 1, 0, ids.get(), nullptr, 1, 4, 1, x.get(), 4, nullptr),
            Status::kInvalidValue);
}

}  // namespace
}  // namespace inferd::kernels::cuda
