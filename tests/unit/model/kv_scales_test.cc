// SPDX-License-Identifier: Apache-2.0
// FP8 pages with a checkpoint's scales. quantised/fp8-kv is quantised/fp8-tensor with K 1024 and V
// 512 times as large, and scales that undo it: all powers of two, so with the scales its pages hold
// the very values of fp8-tensor's, and its logits are the same bits. Without them, E4M3 would end
// at 448.
#include "model/kv_scales.h"

#include "store/model.h"
#include "unit/model/harness.h"
#include "unit/store/files.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

namespace inferd::model {
namespace {

const std::string kAttention = "model.layers.0.self_attn.";

std::vector<std::int32_t> SomeIds() {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 24; ++i) {
    ids.push_back(3 + i * 37 % 280);
  }
  return ids;
}

Result<std::vector<float>> LogitsOf(const std::string& path, ShardSetOptions options) {
  const std::vector<std::int32_t> ids = SomeIds();
  options.max_model_len = static_cast<std::int64_t>(ids.size());
  INFERD_ASSIGN(auto set, ShardSet::Make(path, options));
  // A chunk for the tiles of a device and one for its row kernel.
  INFERD_ASSIGN(auto logits, set->Run({ids}, InChunks({ids}, 20)));
  return std::move(logits[0]);
}

// A GPU where there is one: tests/gpu/check.sh.
std::string TestDevice() {
  const char* const device = std::getenv("INFERD_TEST_DEVICE");
  return device != nullptr ? device : "cuda-emu";
}

class KvScalesTest : public testing::TestWithParam<std::pair<bool, int>> {};

TEST_P(KvScalesTest, PagesHoldWhatTheScalesLeave) {
  ShardSetOptions options;
  options.device = GetParam().first ? TestDevice() : "cpu";
  options.parallel.tp = GetParam().second;
  options.kv_dtype = spec::KvDtype::kFp8;
  const auto plain = LogitsOf(DataPath("quantised/fp8-tensor"), options);
  const auto scaled = LogitsOf(DataPath("quantised/fp8-kv"), options);
  ASSERT_TRUE(plain.ok()) << plain.error().message();
  ASSERT_TRUE(scaled.ok()) << scaled.error().message();
  EXPECT_EQ(*scaled, *plain);
  // The pages are of 8 bits.
  options.kv_dtype = spec::KvDtype::kF16;
  const auto halves = LogitsOf(DataPath("quantised/fp8-kv"), options);
  ASSERT_TRUE(halves.ok()) << halves.error().message();
  EXPECT_NE(*halves, *plain);
}

INSTANTIATE_TEST_SUITE_P(Devices,
                         KvScalesTest,
                         testing::Values(std::pair(false, 1),
                                         std::pair(false, 2),
                                         std::pair(true, 1),
                                         std::pair(true, 2)),
                         [](const testing::TestParamInfo<std::pair<bool, int>>& layout) {
                           return std::string(layout.param.first ? "device_tp" : "cpu_tp") +
                                  std::to_string(layout.param.second);
                         });

using Header = nlohmann::ordered_json;

// A copy of fp8-kv with another header or other bytes in its file of weights.
class Changed {
 public:
  explicit Changed(const std::function<void(Header*, std::string*)>& change) {
    const std::string from = DataPath("quantised/fp8-kv") + "/";
    for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
      folder_.Write(name, store::ReadAll(from + name));
    }
    const std::string bytes = store::ReadAll(from + "model.safetensors");
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    Header header = Header::parse(bytes.substr(8, size));
    std::string data = bytes.substr(8 + size);
    change(&header, &data);
    const std::string text = header.dump();
    folder_.Write("model.safetensors", store::Bytes<std::uint64_t>(text.size()) + text + data);
  }

  Result<std::vector<KvScale>> Scales() const {
    INFERD_ASSIGN(const store::Model model, store::OpenModel(folder_.path()));
    INFERD_ASSIGN(const auto plans, spec::PlanShards(model.spec, {}, model.cut));
    EXPECT_EQ(RangesOfKvScales(model, plans[0]).empty(),
              !model.weights.Find(store::Slot::kKScale, 0));
    return ReadKvScales(model, plans[0]);
  }

 private:
  store::TempDir folder_;
};

void Rename(Header* header, const std::string& from, const std::string& to) {
  (*header)[kAttention + to] = (*header)[kAttention + from];
  header->erase(kAttention + from);
}

TEST(KvScaleFilesTest, EveryToolsNamesAreRead) {
  for (const auto& [k, v] : {std::pair("k_scale", "v_scale"),
                             std::pair("attn.k_scale", "attn.v_scale"),
                             std::pair("k_proj.k_scale", "v_proj.v_scale"),
                             std::pair("qkv_proj.k_scale", "qkv_proj.v_scale"),
                             std::pair("k_proj.output_scale", "v_proj.output_scale")}) {
    const auto scales = Changed([k = k, v = v](Header* header, std::string*) {
                          if (std::string(k) != "k_scale") {
                            Rename(header, "k_scale", k);
                            Rename(header, "v_scale", v);
                          }
                        }).Scales();
    ASSERT_TRUE(scales.ok()) << k << ": " << scales.error().message();
    ASSERT_EQ(scales->size(), 1U);
    EXPECT_EQ((*scales)[0].k, 1024) << k;
    EXPECT_EQ((*scales)[0].v, 512) << k;
  }
}

TEST(KvScaleFilesTest, OneScaleMayBeForBothAndNoneIsOne) {
  const auto shared = Changed([](Header* header, std::string*) {
                        Rename(header, "k_scale", "kv_scale");
                        Rename(header, "v_scale", "q_scale");
                      }).Scales();
  ASSERT_TRUE(shared.ok()) << shared.error().message();
  EXPECT_EQ((*shared)[0].k, 1024);
  EXPECT_EQ((*shared)[0].v, 1024);
  store::Model plain = *store::OpenModel(DataPath("quantised/fp8-tensor"));
  const auto plans = *spec::PlanShards(plain.spec, {}, plain.cut);
  const auto ones = ReadKvScales(plain, plans[0]);
  ASSERT_TRUE(ones.ok());
  EXPECT_EQ((*ones)[0].k, 1);
  EXPECT_EQ((*ones)[0].v, 1);
}

TEST(KvScaleFilesTest, LyingScalesAreRefusedByName) {
  for (const char* const part : {"k_scale", "v_scale"}) {
    const std::string name = kAttention + part;
    const auto refusal = [&](const std::function<void(Header*, std::string*)>& change) {
      const auto scales = Changed(change).Scales();
      return scales.ok() ? "" : scales.error().message();
    };
    for (const float value : {0.0F,
                              -0.0F,
                              -2.0F,
                              1e-45F,
                              std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity()}) {
      const std::string message = refusal([&](Header* header, std::string* data) {
        const auto at = (*header)[name]["data_offsets"][0].get<std::size_t>();
        data->replace(at, sizeof value, store::Bytes(value));
      });
      EXPECT_NE(message.find(name), std::string::npos) << value << ": " << message;
    }
    const std::string type =
        refusal([&](Header* header, std::string*) { (*header)[name]["dtype"] = "I32"; });
    EXPECT_NE(type.find(name), std::string::npos) << type;
    const std::string shape = refusal([&](Header* header, std::string*) {
      (*header)[name]["dtype"] = "F16";
      (*header)[name]["shape"] = {2};  // one per head
    });
    EXPECT_NE(shape.find(name), std::string::npos) << shape;
    EXPECT_NE(shape.find("[2]"), std::string::npos) << shape;
  }
}

TEST(KvScaleFilesTest, TheConfigSaysWhetherAutoIsFp8) {
  const std::string config = store::ReadAll(DataPath("quantised/fp8-kv") + "/config.json");
  const auto says = [&](const std::function<void(Header*)>& change) {
    Header changed = Header::parse(config);
    change(&changed["quantization_config"]);
    const store::TempDir folder;
    for (const char* name : {"model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
      folder.Write(name, store::ReadAll(DataPath("quantised/fp8-kv") + "/" + name));
    }
    folder.Write("config.json", changed.dump());
    const auto model = store::OpenModel(folder.path());
    EXPECT_TRUE(model.ok()) << model.error().message();
    return model.ok() && model->fp8_kv;
  };
  EXPECT_TRUE(says([](Header*) {}));
  EXPECT_FALSE(says([](Header* quant) { quant->erase("kv_cache_scheme"); }));
  EXPECT_FALSE(says([](Header* quant) { (*quant)["kv_cache_scheme"] = nullptr; }));
  EXPECT_FALSE(says([](Header* quant) { (*quant)["kv_cache_scheme"]["type"] = "int"; }));
  EXPECT_FALSE(says([](Header* quant) { (*quant)["kv_cache_scheme"]["num_bits"] = 4; }));
  EXPECT_FALSE(store::OpenModel(DataPath("quantised/fp8-tensor"))->fp8_kv);
}

}  // namespace
}  // namespace inferd::model
