// SPDX-License-Identifier: Apache-2.0
// Dequantisation against values written by the reference Python package of the GGUF format, bit for
// bit.
#include "kernels/dequant/dequant.h"

#include "kernel_fixture.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

namespace inferd::kernels {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Golden : public testing::Test {
 protected:
  void SetUp() override {
    file_ = ReadFile(std::string(INFERD_TEST_DATA) + "/quants/quants.safetensors");
    ASSERT_GT(file_.size(), 8u);
    std::uint64_t size = 0;
    std::memcpy(&size, file_.data(), 8);
    header_ = nlohmann::json::parse(file_.substr(8, size));
    data_ = file_.data() + 8 + size;
  }

  std::string file_;
  nlohmann::json header_;
  const char* data_ = nullptr;
};

TEST_F(Golden, EveryTypeMatches) {
  int types = 0;
  for (const DType type : WeightTypes()) {
    const std::string name(DTypeName(type));
    if (!header_.contains(name + ".raw")) {
      continue;  // F32 and F8_E4M3 have tests of their own below
    }
    ++types;
    const auto& values = header_[name + ".f32"];
    const std::int64_t rows = values["shape"][0];
    const std::int64_t k = values["shape"][1];
    const char* raw = data_ + header_[name + ".raw"]["data_offsets"][0].get<std::size_t>();
    const char* expected = data_ + values["data_offsets"][0].get<std::size_t>();
    std::vector<float> out(static_cast<std::size_t>(k));
    for (std::int64_t r = 0; r < rows; ++r) {
      DequantRow(
          type, reinterpret_cast<const std::byte*>(raw) + r * RowBytes(type, k), k, out.data());
      for (std::size_t i = 0; i < out.size(); ++i) {
        float want = 0;
        std::memcpy(&want, expected + (static_cast<std::size_t>(r * k) + i) * 4, 4);
        ASSERT_EQ(out[i], want) << name << " row " << r << " value " << i;
      }
    }
  }
  EXPECT_EQ(types, 15);
}

TEST(Dequant, F32IsCopied) {
  const float x[3] = {1.5f, -0.0f, 1e-42f};
  float y[3];
  DequantRow(DType::kF32, reinterpret_cast<const std::byte*>(x), 3, y);
  EXPECT_EQ(std::memcmp(x, y, sizeof x), 0);
}

TEST(Dequant, Fp8KnowsItsLimits) {
  const std::uint8_t x[8] = {0x00, 0x01, 0x08, 0x38, 0x7e, 0xfe, 0x7f, 0x80};
  float y[8];
  DequantRow(DType::kF8E4M3, reinterpret_cast<const std::byte*>(x), 8, y);
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], 0x1p-9f);
  EXPECT_EQ(y[2], 0x1p-6f);
  EXPECT_EQ(y[3], 1.0f);
  EXPECT_EQ(y[4], 448.0f);
  EXPECT_EQ(y[5], -448.0f);
  EXPECT_TRUE(std::isnan(y[6]));
  EXPECT_TRUE(std::signbit(y[7]));
}

TEST(Dequant, HalfDenormalsAreExact) {
  EXPECT_EQ(HalfToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(HalfToFloat(0x83ff), -1023 * 0x1p-24f);
  EXPECT_EQ(HalfToFloat(0x7bff), 65504.0f);
  EXPECT_TRUE(std::isinf(HalfToFloat(0xfc00)));
}

}  // namespace
}  // namespace inferd::kernels
