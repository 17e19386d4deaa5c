// SPDX-License-Identifier: Apache-2.0
// Quantised safetensors checkpoints: their values against those from before packing, and files that
// lie (case 67: zeros stored by another convention).
#include "store/quantised.h"

#include "base/float_bits.h"
#include "store/model.h"
#include "store/quantised_parts.h"
#include "unit/store/files.h"
#include "unit/store/safetensors_file.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

namespace inferd::store {
namespace {

std::string Folder(const std::string& name) {
  return std::string(INFERD_TEST_DATA) + "/quantised/" + name;
}

std::vector<std::string> Variants() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(Folder(""))) {
    if (std::filesystem::exists(entry.path() / "expected.safetensors")) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

using File = SafetensorsFile;

float Half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const float size = exponent == 0
                         ? std::ldexp(static_cast<float>(bits & 1023), -24)
                         : std::ldexp(static_cast<float>((bits & 1023) + 1024), exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

// The values of made rows, by the formats' own definitions.
std::vector<float> Decode(DType type, const std::vector<std::byte>& rows) {
  const auto half = [&rows](std::size_t at) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, rows.data() + at, sizeof(bits));
    return bits;
  };
  std::vector<float> values;
  if (type == DType::kF16 || type == DType::kBF16) {
    for (std::size_t i = 0; i < rows.size(); i += 2) {
      values.push_back(type == DType::kF16
                           ? Half(half(i))
                           : std::bit_cast<float>(static_cast<std::uint32_t>(half(i)) << 16));
    }
    return values;
  }
  if (type == DType::kQ8_0) {
    for (std::size_t at = 0; at < rows.size(); at += 34) {
      for (std::size_t i = 2; i < 34; ++i) {
        values.push_back(Half(half(at)) *
                         static_cast<float>(static_cast<std::int8_t>(rows[at + i])));
      }
    }
    return values;
  }
  const bool with_min = type == DType::kQ4_1;
  for (std::size_t at = 0; at < rows.size(); at += with_min ? 20 : 18) {
    const float d = Half(half(at));
    const float m = with_min ? Half(half(at + 2)) : -8 * d;
    for (std::size_t i = 0; i < 32; ++i) {
      const auto byte = static_cast<unsigned>(rows[at + (with_min ? 4 : 2) + i % 16]);
      values.push_back(d * static_cast<float>(i < 16 ? byte & 15U : byte >> 4U) + m);
    }
  }
  return values;
}

class QuantisedTest : public testing::TestWithParam<std::string> {};

TEST_P(QuantisedTest, ValuesAreThoseFromBeforePacking) {
  auto model = OpenModel(Folder(GetParam()));
  ASSERT_TRUE(model.ok()) << model.error().message();
  const File expected = File::Read(Folder(GetParam()) + "/expected.safetensors");
  std::size_t compared = 0;
  for (const auto& [name, entry] : expected.header.items()) {
    if (name == "__metadata__") {
      continue;
    }
    const TensorInfo* tensor = model->tensors.Find(name);
    ASSERT_NE(tensor, nullptr) << name;
    const std::int64_t cols = tensor->cols();
    const auto wanted = expected.Floats(name);
    ASSERT_EQ(static_cast<std::int64_t>(wanted.size()), tensor->rows() / 4 * cols);
    for (std::int64_t row = 0; row < tensor->rows(); row += 4) {
      const auto made = MakeRows(model->tensors, *tensor, tensor->dtype, row, row + 1, 0, cols);
      const std::vector<float> values = Decode(tensor->dtype, made);
      ASSERT_EQ(static_cast<std::int64_t>(values.size()), cols);
      for (std::int64_t j = 0; j < cols; ++j) {
        const float want = wanted[static_cast<std::size_t>(row / 4 * cols + j)];
        // Half a unit of BF16; of 4-bit blocks the rounded minimum, 15 steps of half a unit of F16.
        const float step = std::abs(want) / 256 + (tensor->dtype == DType::kQ4_1 ? 2e-3F : 1e-7F);
        ASSERT_NEAR(values[static_cast<std::size_t>(j)], want, step)
            << name << " [" << row << ", " << j << "]";
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 20'000U);
}

TEST_P(QuantisedTest, AnyCutGivesTheSameBytes) {
  auto model = OpenModel(Folder(GetParam()));
  ASSERT_TRUE(model.ok());
  const TensorInfo* tensor = model->tensors.Find("model.layers.0.mlp.down_proj.weight");
  ASSERT_NE(tensor, nullptr);
  const auto whole = MakeRows(model->tensors, *tensor, tensor->dtype, 0, 8, 0, 192);
  const std::size_t row_bytes = whole.size() / 8;
  const auto left = MakeRows(model->tensors, *tensor, tensor->dtype, 5, 6, 0, 64);
  const auto right = MakeRows(model->tensors, *tensor, tensor->dtype, 5, 6, 64, 192);
  std::vector<std::byte> joined = left;
  joined.insert(joined.end(), right.begin(), right.end());
  EXPECT_TRUE(std::equal(joined.begin(), joined.end(), whole.begin() + 5 * row_bytes));
  EXPECT_EQ(joined.size(), row_bytes);
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         QuantisedTest,
                         testing::ValuesIn(Variants()),
                         [](const testing::TestParamInfo<std::string>& variant) {
                           std::string name = variant.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A copy of a variant whose weights file was changed.
void WriteChanged(const std::string& variant,
                  const std::function<void(File*)>& change,
                  const TempDir& folder) {
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
    folder.Write(name, ReadAll(Folder(variant) + "/" + name));
  }
  File file = File::Read(Folder(variant) + "/model.safetensors");
  change(&file);
  folder.Write("model.safetensors", file.Bytes());
}
Result<Model> OpenChanged(const std::string& variant, const std::function<void(File*)>& change) {
  const TempDir folder;
  WriteChanged(variant, change, folder);
  return OpenModel(folder.path());
}

// The message of the refusal.
std::string Refusal(const std::string& variant, const std::function<void(File*)>& change) {
  auto model = OpenChanged(variant, change);
  return model.ok() ? "" : model.error().message();
}

// Columns [begin, end) by group: each stands once, blocks have one group each, and the values are
// those of the columns in order.
void ExpectGrouped(const Model& model,
                   const std::string& name,
                   std::int64_t begin,
                   std::int64_t end,
                   const std::vector<std::int32_t>& group_of) {
  const TensorInfo* tensor = model.tensors.Find(name);
  ASSERT_NE(tensor, nullptr) << name;
  const auto grouped = GroupColumns(model.tensors, *tensor, begin, end);
  ASSERT_TRUE(grouped.has_value()) << begin << " " << end;
  ASSERT_EQ(grouped->columns.size() % 32, 0U);
  std::vector<int> seen(static_cast<std::size_t>(end - begin));
  for (std::size_t j = 0; j < grouped->columns.size(); ++j) {
    const std::int32_t column = grouped->columns[j];
    if (column < 0) {
      continue;
    }
    ASSERT_LT(column, end - begin);
    ++seen[static_cast<std::size_t>(column)];
    const auto group = [&](std::int32_t c) {
      return group_of[static_cast<std::size_t>(begin + c)];
    };
    const std::int32_t first = grouped->columns[j / 32 * 32];
    ASSERT_EQ(group(column), group(first)) << "column " << j;
    ASSERT_TRUE(j % 32 == 0 || grouped->columns[j - 1] < column) << "in their order";
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), end - begin);
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{7}, tensor->rows() - 1}) {
    const auto made = MakeGroupedRows(model.tensors, *tensor, *grouped, row, row + 1, begin);
    const std::vector<float> values = Decode(grouped->type, made);
    ASSERT_EQ(values.size(), grouped->columns.size());
    const std::vector<float> wanted = Decode(
        DType::kF16, MakeRows(model.tensors, *tensor, DType::kF16, row, row + 1, begin, end));
    for (std::size_t j = 0; j < values.size(); ++j) {
      if (const std::int32_t column = grouped->columns[j]; column >= 0) {
        const float want = wanted[static_cast<std::size_t>(column)];
        ASSERT_NEAR(values[j], want, std::abs(want) / 256 + 2e-3F) << row << " " << j;
      }
    }
  }
}

std::vector<std::int32_t> GroupsOf(const File& file, const std::string& layer) {
  const std::string name = layer + ".g_idx";
  std::vector<std::int32_t> groups(file.header.at(name).at("shape").at(0).get<std::size_t>());
  std::memcpy(groups.data(), file.data.data() + file.At(name), groups.size() * sizeof(groups[0]));
  return groups;
}

TEST(GroupedColumnsTest, ActOrderIsPutIntoBlocksOfOneGroup) {
  const std::string layer = "model.layers.0.mlp.down_proj";
  std::vector<std::int32_t> groups;
  auto model = OpenChanged("gptq-act-order", [&](File* file) { groups = GroupsOf(*file, layer); });
  ASSERT_TRUE(model.ok()) << model.error().message();
  const std::string name = layer + ".weight";
  const auto whole = GroupColumns(model->tensors, *model->tensors.Find(name), 0, 192);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->columns.size(), 192U) << "whole groups need no filling";
  EXPECT_EQ(whole->type, DType::kQ4_1);
  // The slices of two ranks, and one that begins anywhere: their own columns only.
  for (const auto& [begin, end] :
       {std::pair(0, 192), std::pair(0, 96), std::pair(96, 192), std::pair(37, 180)}) {
    ExpectGrouped(*model, name, begin, end, groups);
  }
}

TEST(GroupedColumnsTest, GroupsOfAnySize) {
  const std::string layer = "model.layers.0.mlp.down_proj";
  std::vector<std::int32_t> groups;
  auto model = OpenChanged("gptq-act-order", [&](File* file) {
    groups = GroupsOf(*file, layer);
    for (std::size_t j = 0; j < groups.size(); ++j) {
      groups[j] = static_cast<std::int32_t>(j * j % 7 % 3);  // 3 of 6, none of them of 32 columns
    }
    const auto at = file->At(layer + ".g_idx");
    std::memcpy(file->data.data() + at, groups.data(), groups.size() * sizeof(groups[0]));
  });
  ASSERT_TRUE(model.ok()) << model.error().message();
  ExpectGrouped(*model, layer + ".weight", 0, 192, groups);
}

TEST(GroupedColumnsTest, WhatCannotOrNeedNotBeGrouped) {
  const auto grouped = [](const char* variant, std::int64_t begin, std::int64_t end) {
    auto model = OpenModel(Folder(variant));
    EXPECT_TRUE(model.ok());
    const TensorInfo* tensor = model->tensors.Find("model.layers.0.mlp.down_proj.weight");
    return GroupColumns(model->tensors, *tensor, begin, end).has_value();
  };
  EXPECT_TRUE(grouped("gptq-act-order", 0, 192));
  EXPECT_FALSE(grouped("gptq-act-order", 0, 12)) << "a block of 32 for each of six groups";
  EXPECT_FALSE(grouped("gptq", 0, 192)) << "in order";
  EXPECT_FALSE(grouped("gptq-8bit", 0, 192));
  EXPECT_FALSE(grouped("fp8-channel", 0, 192));
}

// Groups are checked when the model is opened. If the file changes under it, none of another memory
// is counted or read; the values are not finite, which loading refuses.
TEST(GroupedColumnsTest, AFileThatChangesIsNotFollowed) {
  const TempDir folder;
  WriteChanged("gptq-act-order", [](File*) {}, folder);
  auto model = OpenModel(folder.path());
  ASSERT_TRUE(model.ok()) << model.error().message();
  const TensorInfo* tensor = model->tensors.Find("model.layers.0.mlp.down_proj.weight");
  ASSERT_NE(tensor, nullptr);
  ASSERT_TRUE(tensor->parts->group_index.has_value());
  const TensorInfo& index = *tensor->parts->group_index;
  const auto grouped = GroupColumns(model->tensors, *tensor, 0, 192);
  ASSERT_TRUE(grouped.has_value());
  for (const std::int32_t group :
       {6, -1, std::numeric_limits<std::int32_t>::min(), 1'000'000'000}) {
    SCOPED_TRACE(group);
    {
      std::fstream file(model->tensors.FileOf(index),
                        std::ios::binary | std::ios::in | std::ios::out);
      file.seekp(static_cast<std::streamoff>(index.offset) + 5 * 4);
      file << Bytes(group);
    }
    EXPECT_FALSE(GroupedWidth(model->tensors, *tensor, 0, 192).has_value());
    EXPECT_FALSE(GroupColumns(model->tensors, *tensor, 0, 192).has_value());
    EXPECT_TRUE(GroupColumns(model->tensors, *tensor, 6, 192).has_value()) << "without that one";
    const auto made = MakeRows(model->tensors, *tensor, DType::kF16, 3, 4, 0, 192);
    for (std::size_t j = 0; j < 192; ++j) {
      EXPECT_EQ(std::isfinite(PlainToFloat(DType::kF16, made.data() + 2 * j)), j != 5) << j;
    }
    // 192 values in blocks of 20 bytes.
    EXPECT_EQ(MakeGroupedRows(model->tensors, *tensor, *grouped, 3, 4, 0).size(), 120U);
  }
}

TEST(QuantisedFilesTest, LyingPartsAreRefusedByName) {
  const std::string layer = "model.layers.0.mlp.up_proj";
  const auto with_shape = [&](const std::string& part, std::vector<std::int64_t> shape) {
    return [=](File* file) { file->header[layer + part]["shape"] = shape; };
  };
  // The bytes stay, so the shapes keep their product.
  for (const auto& [variant, part, shape] :
       std::vector<std::tuple<std::string, std::string, std::vector<std::int64_t>>>{
           {"awq", ".qzeros", {8, 12}},
           {"awq", ".scales", {8, 96}},
           {"gptq", ".qzeros", {8, 12}},
           {"gptq", ".scales", {192, 4}},
           {"gptq-act-order", ".g_idx", {2, 64}},
           {"fp8-channel", ".weight_scale", {64, 3}},
           {"fp8-block", ".weight_scale_inv", {1, 2}},
           {"compressed-w4", ".weight_scale", {96, 8}},
           {"compressed-w4-zeros", ".weight_zero_point", {48, 2}}}) {
    const std::string message = Refusal(variant, with_shape(part, shape));
    EXPECT_NE(message.find(layer + part), std::string::npos) << variant << ": " << message;
  }
}

// Q8_0 blocks have an F16 scale, which loses bits below 2^-14: such a layer becomes floats.
TEST(QuantisedFilesTest, SmallScalesKeepTheirBits) {
  const std::string layer = "model.layers.0.mlp.up_proj";
  auto model = OpenChanged("compressed-int8", [&](File* file) { file->MakeScaleSmall(layer); });
  ASSERT_TRUE(model.ok()) << model.error().message();
  EXPECT_EQ(model->tensors.Find(layer + ".weight")->dtype, DType::kBF16);
  EXPECT_EQ(model->tensors.Find("model.layers.0.mlp.gate_proj.weight")->dtype, DType::kQ8_0);
}

TEST(QuantisedFilesTest, AbsentForeignAndMisplacedPartsAreRefused) {
  const std::string layer = "model.layers.0.mlp.up_proj";
  const auto rename = [&](const std::string& from, const std::string& to) {
    return [=](File* file) {
      file->header[layer + to] = file->header[layer + from];
      file->header.erase(layer + from);
    };
  };
  EXPECT_NE(Refusal("awq", rename(".qzeros", ".notes")).find(layer + ".qzeros is absent"),
            std::string::npos);
  EXPECT_NE(Refusal("fp8-channel", rename(".weight_scale", ".weight_note"))
                .find(layer + ".weight_scale is absent"),
            std::string::npos);
  EXPECT_NE(Refusal("compressed-w4", rename(".weight_packed", ".qweight")).find(layer),
            std::string::npos);
  const std::string packed = Refusal("compressed-int8", rename(".weight", ".weight_packed"));
  EXPECT_NE(packed.find("does not say of how many bits"), std::string::npos) << packed;
  const std::string out_of_range = Refusal("gptq", [&](File* file) {
    file->data.replace(file->At(layer + ".g_idx") + 4, 4, Bytes<std::int32_t>(4));
  });
  EXPECT_NE(out_of_range.find("puts input 1 into group 4; there are 4"), std::string::npos)
      << out_of_range;
}

TEST(QuantisedFilesTest, UnknownWaysOfQuantisingAreRefusedByName) {
  const auto refusal = [](const std::string& text) {
    const Json whole = *ParseJsonObject("config.json", text);
    const auto read = ReadQuantConfig(JsonFields("config.json", whole));
    return read.ok() ? std::string() : read.error().message();
  };
  const auto quant = [&](const std::string& inner) {
    return refusal(R"({"quantization_config": )" + inner + "}");
  };
  EXPECT_NE(quant(R"({"quant_method": "bitsandbytes"})").find("quant_method bitsandbytes"),
            std::string::npos);
  EXPECT_NE(quant(R"({"quant_method": "awq", "bits": 4, "version": "gemv"})").find("version gemv"),
            std::string::npos);
  EXPECT_NE(quant(R"({"quant_method": "gptq", "bits": 3})").find("GPTQ of 3 bits"),
            std::string::npos);
  EXPECT_NE(quant(R"({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"})")
                .find("checkpoint_format marlin"),
            std::string::npos);
  EXPECT_NE(quant(R"({"quant_method": "fp8", "weight_block_size": [64, 64]})").find("[64, 64]"),
            std::string::npos);
  EXPECT_NE(quant(R"({"quant_method": "compressed-tensors", "format": "marlin-24"})")
                .find("format marlin-24"),
            std::string::npos);
  EXPECT_NE(quant("7").find("is not an object"), std::string::npos);
}

}  // namespace
}  // namespace inferd::store
