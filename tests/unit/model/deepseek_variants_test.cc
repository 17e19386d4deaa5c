// SPDX-License-Identifier: Apache-2.0
// What files of DeepSeek models may be besides those of the fixtures: kv_b_proj in FP8 blocks, a
// layer that guesses behind the last one, and projections that are rounded while loading.
#include "base/float_bits.h"
#include "model/weights.h"
#include "store/block_rounding.h"
#include "store/safetensors.h"
#include "store/shape.h"
#include "unit/model/harness.h"
#include "unit/store/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace inferd::model {
namespace {

struct Stored {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

/// A fixture that can be changed, and written elsewhere.
class Files {
 public:
  explicit Files(const std::string& family)
      : config(store::ReadAll(DataPath(family, "config.json"))), family_(family) {
    const auto source = store::OpenSafetensors(DataPath(family));
    EXPECT_TRUE(source.ok());
    for (const store::TensorInfo& tensor : source->tensors()) {
      const auto data = source->Data(tensor);
      tensors[tensor.name] = {std::string(DTypeName(tensor.dtype)),
                              tensor.shape,
                              std::string(reinterpret_cast<const char*>(data.data()), data.size())};
    }
  }

  void Replace(const std::string& what, const std::string& with) {
    const std::size_t at = config.find(what);
    ASSERT_NE(at, std::string::npos) << what;
    config.replace(at, what.size(), with);
  }

  void Write(const store::TempDir& folder) const {
    std::string header = "{";
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                            header.size() == 1 ? "" : ",",
                            name,
                            tensor.dtype,
                            fmt::join(tensor.shape, ","),
                            data.size(),
                            data.size() + tensor.bytes.size());
      data += tensor.bytes;
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    folder.Write("model.safetensors", store::Bytes<std::uint64_t>(header.size()) + header + data);
    folder.Write("config.json", config);
    folder.Write("tokenizer.json", store::ReadAll(DataPath(family_, "tokenizer.json")));
  }

  std::string config;
  std::map<std::string, Stored> tensors;

 private:
  const std::string family_;
};

std::vector<float> Logits(const std::string& path,
                          const std::vector<std::int32_t>& ids,
                          const std::string& device = "cpu",
                          int tp = 1,
                          const std::string& quantization = "") {
  ShardSetOptions options;
  options.device = device;
  options.parallel.tp = tp;
  options.kv_dtype = spec::KvDtype::kF32;
  options.quantization = quantization;
  options.threads = 2;
  auto set = ShardSet::Make(path, options);
  if (!set.ok()) {
    ADD_FAILURE() << set.error().message();
    return {};
  }
  auto logits = (*set)->Run({ids}, InChunks({ids}, 20));
  if (!logits.ok()) {
    ADD_FAILURE() << logits.error().message();
    return {};
  }
  return (*logits)[0];
}

float Worst(const std::vector<float>& got, const std::vector<float>& expected) {
  float worst = got.size() == expected.size() && !got.empty() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    const float difference = std::abs(got[i] - expected[i]);
    worst = std::isfinite(difference) ? std::max(worst, difference) : INFINITY;
  }
  return worst;
}

// How many tokens' logits all differ by `bound` at most.
std::size_t TokensWithin(float bound,
                         const std::vector<float>& got,
                         const std::vector<float>& expected,
                         std::size_t tokens) {
  const std::size_t vocab = expected.size() / tokens;
  std::size_t within = 0;
  for (std::size_t at = 0; at < std::min(got.size(), expected.size()); at += vocab) {
    float worst = 0;
    for (std::size_t i = at; i < at + vocab; ++i) {
      worst = std::max(worst, std::abs(got[i] - expected[i]));
    }
    within += worst <= bound ? 1 : 0;
  }
  return within;
}

float Bf16At(const std::string& bytes, std::size_t i) {
  return PlainToFloat(DType::kBF16, reinterpret_cast<const std::byte*>(bytes.data()) + 2 * i);
}

// kv_b_proj in E4M3 with a scale per 128 x 128 values, the last block of rows half of one; in
// `plain` what these values are in BF16.
void RoundKvB(Files* blocks, Files* plain) {
  constexpr std::int64_t kBlock = 128;
  for (const int layer : {0, 1}) {
    const std::string name = fmt::format("model.layers.{}.self_attn.kv_b_proj.weight", layer);
    const Stored from = blocks->tensors.at(name);
    const std::int64_t rows = from.shape[0], cols = from.shape[1];
    ASSERT_TRUE(rows > kBlock && rows % kBlock != 0 && cols < kBlock);
    Stored codes{"F8_E4M3", from.shape, {}};
    Stored scales{"F32", {(rows + kBlock - 1) / kBlock, 1}, {}};
    Stored rounded{"BF16", from.shape, {}};
    for (std::int64_t begin = 0; begin < rows; begin += kBlock) {
      const auto first = static_cast<std::size_t>(begin * cols);
      const auto last = static_cast<std::size_t>(std::min(rows, begin + kBlock) * cols);
      float largest = 0;
      for (std::size_t i = first; i < last; ++i) {
        largest = std::max(largest, std::abs(Bf16At(from.bytes, i)));
      }
      const float scale = largest / store::kF8Largest;
      scales.bytes += store::Bytes(scale);
      for (std::size_t i = first; i < last; ++i) {
        const std::uint8_t code = store::RoundToF8(Bf16At(from.bytes, i) / scale);
        codes.bytes += static_cast<char>(code);
        rounded.bytes += store::Bytes(FloatToBf16(F8ToFloat(code) * scale));
      }
    }
    blocks->tensors[name] = codes;
    blocks->tensors[name + "_scale_inv"] = scales;
    plain->tensors[name] = rounded;
  }
}

TEST(DeepseekVariants, BlocksOfFp8InKvBAreTheirBf16Values) {
  Files blocks("deepseek-v3"), plain("deepseek-v3");
  RoundKvB(&blocks, &plain);
  blocks.Replace("\"vocab_size\"",
                 R"("quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
  "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, "vocab_size")");
  const store::TempDir of_blocks, of_plain;
  blocks.Write(of_blocks);
  plain.Write(of_plain);
  const auto ids = ReadGolden("deepseek-v3").ints.at("input_ids");
  const std::vector<float> as_stored = Logits(DataPath("deepseek-v3"), ids);
  for (const char* const device : {"cpu", "cuda-emu"}) {
    const auto expected = Logits(of_plain.path(), ids, device);
    EXPECT_EQ(Logits(of_blocks.path(), ids, device), expected) << device;
    // The heads of the second rank begin inside a block.
    EXPECT_EQ(Logits(of_blocks.path(), ids, device, 2), Logits(of_plain.path(), ids, device, 2));
    EXPECT_GT(Worst(expected, as_stored), 1e-3F) << "nothing was rounded";
  }
}

// A layer as DeepSeek-V3's files have behind the last one; all of it NaN.
void AddGuessingLayer(int layer, Files* files) {
  std::map<std::string, Stored> more;
  const std::string at = fmt::format("model.layers.{}.", layer);
  const std::string like = "model.layers.1.";
  for (const auto& [name, tensor] : files->tensors) {
    if (name.starts_with(like)) {
      more[at + name.substr(like.size())] = tensor;
    }
  }
  const Stored norm = files->tensors.at("model.norm.weight");
  const Stored table = files->tensors.at("model.embed_tokens.weight");
  more[at + "embed_tokens.weight"] = table;
  more[at + "enorm.weight"] = norm;
  more[at + "hnorm.weight"] = norm;
  more[at + "eh_proj.weight"] = {"BF16", {64, 128}, std::string(64 * 128 * 2, '\0')};
  more[at + "shared_head.norm.weight"] = norm;
  more[at + "shared_head.head.weight"] = table;
  for (auto& [name, tensor] : more) {
    std::ranges::fill(tensor.bytes, '\xFF');
    files->tensors[name] = tensor;
  }
}

TEST(DeepseekVariants, ALayerBehindTheLastIsNeitherRunNorCounted) {
  Files files("deepseek-v3");
  AddGuessingLayer(2, &files);
  files.Replace("\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1");
  const store::TempDir folder;
  files.Write(folder);
  const auto ids = ReadGolden("deepseek-v3").ints.at("input_ids");
  EXPECT_EQ(Logits(folder.path(), ids), Logits(DataPath("deepseek-v3"), ids));

  const auto more = store::OpenModel(folder.path());
  const auto model = store::OpenModel(DataPath("deepseek-v3"));
  ASSERT_TRUE(more.ok() && model.ok());
  EXPECT_GT(more->tensors.tensors().size(), model->tensors.tensors().size());
  EXPECT_EQ(store::LoadedBytes(*more), store::LoadedBytes(*model));
  const auto shape = store::ReadShape(folder.path());
  const auto plain = store::ReadShape(DataPath("deepseek-v3"));
  ASSERT_TRUE(shape.ok() && plain.ok());
  EXPECT_EQ(shape->bytes_per_weight, plain->bytes_per_weight);
  EXPECT_NEAR(plain->bytes_per_weight, 2, 1e-9);

  AddGuessingLayer(3, &files);
  files.Write(folder);
  EXPECT_FALSE(store::OpenModel(folder.path()).ok()) << "one such layer is known";
}

TEST(DeepseekVariants, ProjectionsOfTheLatentsAreRoundedWhileLoading) {
  const auto plain = store::OpenModel(DataPath("deepseek-v3"));
  ASSERT_TRUE(plain.ok());
  const auto golden = ReadGolden("deepseek-v3");
  const auto& ids = golden.ints.at("input_ids");
  const auto& expected = golden.floats.at("logits");
  float largest = 0;
  for (const float logit : expected) {
    largest = std::max(largest, std::abs(logit));
  }
  for (const auto& [name, type] :
       {std::pair("int8", DType::kQ8_0), std::pair("fp8", DType::kF8E4M3)}) {
    const auto model = store::OpenModel(DataPath("deepseek-v3"), name, true);
    ASSERT_TRUE(model.ok()) << model.error().message();
    for (const store::Slot slot : {store::Slot::kQA, store::Slot::kKvA}) {
      EXPECT_EQ(model->weights.Find(slot, 1)->dtype(), type) << SlotName(slot);
    }
    EXPECT_EQ(model->weights.Find(store::Slot::kKvB, 1)->dtype(), DType::kBF16);
    EXPECT_LT(store::LoadedBytes(*model), store::LoadedBytes(*plain) * 3 / 4);
    // Where rounding decides for another expert, the token's logits are others.
    const float bound = (name == std::string("int8") ? 0.05F : 0.15F) * largest;
    for (const char* const device : {"cpu", "cuda-emu"}) {
      const auto logits = Logits(DataPath("deepseek-v3"), ids, device, 1, name);
      EXPECT_GE(TokensWithin(bound, logits, expected, ids.size()), ids.size() / 2)
          << name << " on " << device;
      EXPECT_GT(Worst(logits, expected), 1e-3F) << "nothing was rounded";
    }
  }
}

}  // namespace
}  // namespace inferd::model
