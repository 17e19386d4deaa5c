// SPDX-License-Identifier: Apache-2.0
// --quantization: blocks rounded while they are read, and what the flag says of the files.
#include "store/load_quantisation.h"

#include "base/float_bits.h"
#include "store/block_rounding.h"
#include "store/model.h"
#include "store/quantised.h"
#include "store/quantised_parts.h"
#include "unit/store/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace inferd::store {
namespace {

std::string Folder(const std::string& name) {
  return std::string(INFERD_TEST_DATA) + "/quantised/" + name;
}

struct Block {
  float scale = 0;
  RoundedValues values = {};
};

Block Decode(DType type, const std::byte* bytes) {
  std::uint16_t half = 0;
  std::memcpy(&half, bytes, sizeof(half));
  Block block;
  block.scale = HalfToFloat(half);
  for (std::size_t i = 0; i < block.values.size(); ++i) {
    const auto byte = static_cast<unsigned>(bytes[2 + (type == DType::kQ8_0 ? i : i % 16)]);
    const int q = type == DType::kQ8_0 ? static_cast<std::int8_t>(byte)
                                       : static_cast<int>(i < 16 ? byte & 15U : byte >> 4U) - 8;
    block.values[i] = static_cast<float>(q) * block.scale;
  }
  return block;
}

Block Rounded(DType type, const RoundedValues& values) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(BlockBytes(type)));
  EXPECT_EQ(RoundBlock(values, type, bytes.data()), bytes.data() + bytes.size());
  return Decode(type, bytes.data());
}

double SquaredError(const RoundedValues& a, const RoundedValues& b) {
  double error = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += static_cast<double>(a[i] - b[i]) * (a[i] - b[i]);
  }
  return error;
}

TEST(BlockRounding, Int8IsOffByHalfAStepAtMost) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    std::normal_distribution<float> normal(0,
                                           std::ldexp(1.0F, static_cast<int>(random() % 16) - 10));
    RoundedValues values;
    std::ranges::generate(values, [&] { return normal(random); });
    const Block block = Rounded(DType::kQ8_0, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      // The scale itself is rounded to a half: 127 steps of it may miss the largest value.
      EXPECT_NEAR(block.values[i], values[i], block.scale * (0.5F + 127.0F / 2048));
    }
  }
}

TEST(BlockRounding, Int4IsNoWorseThanTheLargestValueAtMinusEight) {
  std::mt19937 random(5);
  int better = 0;
  for (int round = 0; round < 500; ++round) {
    std::normal_distribution<float> normal(0, 0.02F);
    RoundedValues values;
    std::ranges::generate(values, [&] { return normal(random); });
    const float largest = *std::ranges::max_element(
        values, [](float a, float b) { return std::abs(a) < std::abs(b); });
    const float scale = HalfToFloat(FloatToHalf(largest / -8));
    RoundedValues simple;
    std::ranges::transform(values, simple.begin(), [&](float value) {
      return std::clamp(std::nearbyint(value / scale), -8.0F, 7.0F) * scale;
    });
    const double plain = SquaredError(values, simple);
    const double error = SquaredError(values, Rounded(DType::kQ4_0, values).values);
    EXPECT_LE(error, plain * (1 + 1e-5));
    better += error < plain * 0.99 ? 1 : 0;
  }
  EXPECT_GT(better, 200);
}

TEST(BlockRounding, ZerosStayAndNonFiniteValuesAreNotHidden) {
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    EXPECT_EQ(Rounded(type, {}).values, RoundedValues{});
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      RoundedValues values = {};
      values[17] = bad;
      EXPECT_TRUE(std::isinf(Rounded(type, values).scale)) << bad;
    }
  }
}

TEST(LoadQuantisation, RoundsProjectionsAndNothingElse) {
  for (const auto& [name, type] :
       {std::pair("int8", DType::kQ8_0), std::pair("int4", DType::kQ4_0)}) {
    const auto plain = OpenModel(Folder("plain"));
    const auto model = OpenModel(Folder("plain"), name);
    ASSERT_TRUE(plain.ok() && model.ok()) << model.error().message();
    EXPECT_EQ(model->spec.weight_dtype, type);
    for (const Slot slot :
         {Slot::kQ, Slot::kK, Slot::kV, Slot::kO, Slot::kGate, Slot::kUp, Slot::kDown}) {
      const WeightRef* ref = model->weights.Find(slot, 0);
      EXPECT_EQ(ref->dtype(), type) << SlotName(slot);
      const auto rows = MakeRows(model->tensors, *ref->tensor, type, 1, 2, 32, 64);
      const Block block = Decode(type, rows.data());
      const TensorInfo& stored = *plain->weights.Find(slot, 0)->tensor;
      const RoundedValues wanted =
          PlainBlock(stored.dtype, plain->tensors.Data(stored).data(), stored.cols() + 32);
      EXPECT_LT(SquaredError(block.values, wanted), 32.0 * block.scale * block.scale)
          << SlotName(slot);
      EXPECT_NE(block.scale, 0);
    }
    for (const Slot slot : {Slot::kEmbedding, Slot::kHead, Slot::kFinalNorm}) {
      EXPECT_EQ(model->weights.Find(slot)->dtype(), plain->weights.Find(slot)->dtype());
    }
    EXPECT_EQ(model->weights.Find(Slot::kAttnNorm, 0)->dtype(),
              plain->weights.Find(Slot::kAttnNorm, 0)->dtype());
  }
}

TEST(LoadQuantisation, E4M3TakesTheNearestCode) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) != 0x7f) {
      const auto bits = static_cast<std::uint8_t>(code);
      EXPECT_EQ(RoundToF8(F8ToFloat(bits)), bits);
    }
  }
  EXPECT_EQ(RoundToF8(17.0F), RoundToF8(16.0F)) << "a tie goes to the even code";
  EXPECT_EQ(RoundToF8(19.0F), RoundToF8(20.0F));
  EXPECT_EQ(RoundToF8(0x1p-10F), 0) << "half of the least";
  EXPECT_EQ(RoundToF8(0x1.8p-10F), 1);
  EXPECT_EQ(RoundToF8(-1e9F), RoundToF8(-448.0F));
  EXPECT_TRUE(std::isnan(F8ToFloat(RoundToF8(NAN))));
}

// A scale per output, of all its inputs: the same in any cut.
TEST(LoadQuantisation, Fp8StaysWhereTheDeviceTakesItAndIsBf16ElseWhere) {
  const auto plain = OpenModel(Folder("plain"));
  const auto kept = OpenModel(Folder("plain"), "fp8", true);
  const auto made = OpenModel(Folder("plain"), "fp8", false);
  ASSERT_TRUE(plain.ok() && kept.ok() && made.ok());
  for (const Slot slot : {Slot::kQ, Slot::kO, Slot::kGate, Slot::kDown}) {
    const TensorInfo& stored = *plain->weights.Find(slot, 0)->tensor;
    const TensorInfo& codes = *kept->weights.Find(slot, 0)->tensor;
    const TensorInfo& floats = *made->weights.Find(slot, 0)->tensor;
    ASSERT_EQ(codes.dtype, DType::kF8E4M3) << SlotName(slot);
    ASSERT_EQ(floats.dtype, DType::kBF16) << SlotName(slot);
    EXPECT_EQ(2 * codes.bytes, floats.bytes);
    const auto scales = ScalesOf(kept->tensors, codes, 3, 4, 32, 64);
    ASSERT_TRUE(scales && scales->values.size() == 1);
    EXPECT_EQ(scales->values, ScalesOf(kept->tensors, codes, 3, 4, 0, stored.cols())->values);
    EXPECT_EQ(scales->group_columns, 32);
    const auto row = MakeRows(kept->tensors, codes, DType::kF8E4M3, 3, 4, 32, 64);
    const auto bf16 = MakeRows(made->tensors, floats, DType::kBF16, 3, 4, 32, 64);
    const RoundedValues wanted =
        PlainBlock(stored.dtype, plain->tensors.Data(stored).data(), 3 * stored.cols() + 32);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const float value = F8ToFloat(static_cast<std::uint8_t>(row[i])) * scales->values[0];
      EXPECT_NEAR(value, wanted[i], std::abs(wanted[i]) / 16 + scales->values[0] / 1024);
      EXPECT_EQ(PlainToFloat(DType::kBF16, bf16.data() + 2 * i), Bf16ToFloat(FloatToBf16(value)));
    }
  }
  EXPECT_EQ(kept->spec.weight_dtype, DType::kF8E4M3);
}

TEST(LoadQuantisation, Fp8OfFilesStaysToo) {
  for (const char* folder : {"fp8-tensor", "fp8-channel", "fp8-block"}) {
    const auto kept = OpenModel(Folder(folder), "", true);
    const auto made = OpenModel(Folder(folder));
    ASSERT_TRUE(kept.ok() && made.ok());
    const TensorInfo& codes = *kept->weights.Find(Slot::kDown, 0)->tensor;
    const TensorInfo& floats = *made->weights.Find(Slot::kDown, 0)->tensor;
    ASSERT_EQ(codes.dtype, DType::kF8E4M3) << folder;
    ASSERT_EQ(floats.dtype, DType::kBF16) << folder;
    const std::int64_t k = codes.cols();
    const auto scales = ScalesOf(kept->tensors, codes, 0, 2, 0, k);
    ASSERT_TRUE(scales);
    const std::int64_t groups = (k + scales->group_columns - 1) / scales->group_columns;
    ASSERT_EQ(scales->values.size(), static_cast<std::size_t>(2 * groups));
    const auto row = MakeRows(kept->tensors, codes, DType::kF8E4M3, 1, 2, 0, k);
    const auto bf16 = MakeRows(made->tensors, floats, DType::kBF16, 1, 2, 0, k);
    for (std::int64_t j = 0; j < k; ++j) {
      const auto at = static_cast<std::size_t>(j);
      const float value =
          F8ToFloat(static_cast<std::uint8_t>(row[at])) *
          scales->values[static_cast<std::size_t>(groups + j / scales->group_columns)];
      EXPECT_EQ(PlainToFloat(DType::kBF16, bf16.data() + 2 * at), Bf16ToFloat(FloatToBf16(value)))
          << folder;
    }
  }
}

// Where a device takes it, a layer whose inputs are rounded per token keeps its bytes and says so.
TEST(LoadQuantisation, LayersWithActivationsPerTokenStay) {
  for (const auto& [folder, type, by_token] :
       {std::tuple("compressed-w8a8", DType::kI8, true),
        std::tuple("compressed-fp8-dynamic", DType::kF8E4M3, true),
        std::tuple("compressed-int8", DType::kQ8_0, false),
        std::tuple("fp8-channel", DType::kF8E4M3, false)}) {
    const auto kept = OpenModel(Folder(folder), "", true);
    const auto made = OpenModel(Folder(folder));
    ASSERT_TRUE(kept.ok() && made.ok());
    const TensorInfo& codes = *kept->weights.Find(Slot::kDown, 0)->tensor;
    EXPECT_EQ(codes.dtype, type) << folder;
    EXPECT_EQ(made->weights.Find(Slot::kDown, 0)->dtype(),
              type == DType::kF8E4M3 ? DType::kBF16 : DType::kQ8_0)
        << folder;
    if (type == DType::kQ8_0) {
      continue;
    }
    const std::int64_t k = codes.cols();
    const auto scales = ScalesOf(kept->tensors, codes, 5, 7, 0, k);
    ASSERT_TRUE(scales);
    EXPECT_EQ(scales->by_token, by_token) << folder;
    EXPECT_EQ(scales->group_columns, k);
    EXPECT_FALSE(ScalesOf(kept->tensors, codes, 5, 7, 32, 64)->by_token) << "a slice of a row";
    const auto row = MakeRows(kept->tensors, codes, type, 6, 7, 0, k);
    const auto stored =
        kept->tensors.Data(codes.parts->weight).subspan(static_cast<std::size_t>(6 * k));
    ASSERT_EQ(row.size(), static_cast<std::size_t>(k));
    EXPECT_TRUE(std::equal(row.begin(), row.end(), stored.begin())) << folder;
  }
}

TEST(LoadQuantisation, OnlyActivationsFoundPerTokenInEightBitsAreRounded) {
  const auto type = [](const std::string& inputs, const std::string& more) {
    const Json whole = *ParseJsonObject(
        "config.json",
        R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized",
            "config_groups": {"group_0": {"weights": {}, "input_activations": )" +
            inputs + "}" + more + "}}}");
    const auto read = ReadQuantConfig(JsonFields("config.json", whole));
    EXPECT_TRUE(read.ok()) << read.error().message();
    return (*read)->token_activations;
  };
  const std::string int8 =
      R"({"num_bits": 8, "type": "int", "strategy": "token", "dynamic": true})";
  const std::string fp8 =
      R"({"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true})";
  EXPECT_EQ(type(int8, ""), DType::kI8);
  EXPECT_EQ(type(fp8, ""), DType::kF8E4M3);
  EXPECT_EQ(type(int8, R"(, "group_1": {"input_activations": )" + int8 + "}"), DType::kI8);
  EXPECT_EQ(type(int8, R"(, "group_1": {"input_activations": )" + fp8 + "}"), std::nullopt);
  EXPECT_EQ(type(int8, R"(, "group_1": {"input_activations": null})"), std::nullopt);
  EXPECT_EQ(type("null", ""), std::nullopt);
  for (
      const char* other :
      {R"({"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": false})",
       R"({"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": true})",
       R"({"num_bits": 4, "type": "int", "strategy": "token", "dynamic": true})",
       R"({"num_bits": 8, "type": "int", "strategy": "token", "dynamic": true, "symmetric": false})",
       R"({"num_bits": 8, "type": "int", "strategy": "token"})"}) {
    EXPECT_EQ(type(other, ""), std::nullopt) << other;
  }
}

TEST(LoadQuantisation, RoundsStackedExperts) {
  const auto model = OpenModel(std::string(INFERD_TEST_DATA) + "/mixtral", "int8");
  ASSERT_TRUE(model.ok()) << model.error().message();
  for (const Slot slot : {Slot::kExpertGate, Slot::kExpertUp, Slot::kExpertDown}) {
    EXPECT_EQ(model->weights.Find(slot, 1, 3)->dtype(), DType::kQ8_0) << SlotName(slot);
  }
  EXPECT_EQ(model->weights.Find(Slot::kRouter, 1)->tensor->parts, nullptr);
}

TEST(LoadQuantisation, NamesOfFormatsMustBeTheFiles) {
  for (const auto& [folder, name] : {std::pair("awq", "awq"),
                                     std::pair("awq", "awq_marlin"),
                                     std::pair("gptq", "gptq"),
                                     std::pair("fp8-block", "fp8"),
                                     std::pair("compressed-w4", "compressed-tensors")}) {
    const auto model = OpenModel(Folder(folder), name);
    EXPECT_TRUE(model.ok()) << model.error().message();
  }
  const auto refusal = [](const char* folder, const char* name) {
    const auto model = OpenModel(Folder(folder), name);
    return model.ok() ? std::string() : model.error().message();
  };
  EXPECT_NE(refusal("awq", "gptq").find("of the format awq"), std::string::npos);
  EXPECT_NE(refusal("plain", "gptq").find("are not quantised"), std::string::npos);
  EXPECT_NE(refusal("awq", "fp8").find("of the format awq"), std::string::npos);
  EXPECT_NE(refusal("plain", "bitsandbytes").find("give fp8, int8 or int4"), std::string::npos);
  EXPECT_NE(refusal("awq", "int8").find("no projection"), std::string::npos);
}

}  // namespace
}  // namespace inferd::store
