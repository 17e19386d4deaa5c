// SPDX-License-Identifier: Apache-2.0
// The tiny models of tests/data: every family opens, and its safetensors and GGUF forms say the
// same.
#include "store/model.h"
#include "unit/store/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace inferd::store {
namespace {

using spec::ModelSpec;
using spec::RopeSpec;
using testing::HasSubstr;

std::string Data(const std::string& name) { return std::string(INFERD_TEST_DATA) + "/" + name; }

std::vector<std::string> FixtureNames(const std::string& file) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(INFERD_TEST_DATA)) {
    if (std::filesystem::exists(entry.path() / file)) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::ranges::sort(names);
  return names;
}

class EveryFixture : public testing::TestWithParam<std::string> {};

TEST_P(EveryFixture, OpensCompletely) {
  const auto model = OpenModel(Data(GetParam()));
  ASSERT_TRUE(model.ok()) << model.error().message();
  EXPECT_TRUE(spec::Validate(model->spec).ok());
  EXPECT_FALSE(model->tokenizer.tokenizer_json.empty());
  EXPECT_FALSE(model->spec.eos_ids.empty());
  // Every byte of the file belongs to one place, embeddings of tied heads aside.
  std::uint64_t stored = 0;
  for (const TensorInfo& tensor : model->tensors.tensors()) {
    stored += tensor.bytes;
  }
  std::uint64_t placed = 0;
  const auto add = [&](Slot slot, std::int64_t layer, std::int64_t expert) {
    if (const WeightRef* ref = model->weights.Find(slot, layer, expert); ref != nullptr) {
      placed += ref->bytes();
    }
  };
  for (int slot = 0; slot <= static_cast<int>(Slot::kExpertDown); ++slot) {
    if (static_cast<Slot>(slot) != Slot::kHead || !model->spec.tied_head) {
      add(static_cast<Slot>(slot), -1, -1);
    }
    for (std::int64_t layer = 0; layer < model->spec.num_layers; ++layer) {
      add(static_cast<Slot>(slot), layer, -1);
      for (std::int64_t expert = 0; expert < model->spec.moe.num_experts; ++expert) {
        add(static_cast<Slot>(slot), layer, expert);
      }
    }
  }
  EXPECT_EQ(placed, stored);
}

INSTANTIATE_TEST_SUITE_P(Data,
                         EveryFixture,
                         testing::ValuesIn(FixtureNames("config.json")),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// --- Twins. ---

// Frequencies that a rope gives its pairs, as multiples of the plain ones, so that llama3 rules and
// the factors that GGUF files bake from them compare.
std::vector<double> Slowdown(const RopeSpec& rope) {
  std::vector<double> slowdown;
  const std::int64_t half = rope.rotary_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    double factor = rope.freq_factors.empty() ? 1 : rope.freq_factors[static_cast<std::size_t>(i)];
    if (rope.kind == spec::RopeKind::kLlama3) {
      const double exponent = 2 * static_cast<double>(i) / static_cast<double>(rope.rotary_dim);
      const double wavelength = 2 * M_PI * std::pow(rope.theta, exponent);
      const double turns = static_cast<double>(rope.original_max_position) / wavelength;
      const double smooth = std::clamp(
          (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor),
          0.0,
          1.0);
      factor = 1 / ((1 - smooth) / rope.factor + smooth);
    }
    slowdown.push_back(factor);
  }
  return slowdown;
}

void ExpectSameRope(const RopeSpec& hf, const RopeSpec& gguf) {
  EXPECT_EQ(hf.theta, gguf.theta);
  EXPECT_EQ(hf.rotary_dim, gguf.rotary_dim);
  EXPECT_EQ(hf.short_factors, gguf.short_factors);
  EXPECT_EQ(hf.long_factors, gguf.long_factors);
  EXPECT_THAT(Slowdown(hf), testing::Pointwise(testing::DoubleNear(1e-5), Slowdown(gguf)));
  if (hf.kind != spec::RopeKind::kLlama3) {
    EXPECT_EQ(hf.kind, gguf.kind);
    EXPECT_EQ(hf.factor, gguf.factor);
  }
  if (hf.kind == spec::RopeKind::kLongRope) {
    EXPECT_EQ(hf.original_max_position, gguf.original_max_position);
  }
}

void ExpectSameSpec(const ModelSpec& hf, const ModelSpec& gguf) {
  EXPECT_EQ(hf.vocab_size, gguf.vocab_size);
  EXPECT_EQ(hf.hidden_size, gguf.hidden_size);
  EXPECT_EQ(hf.num_layers, gguf.num_layers);
  EXPECT_EQ(hf.num_heads, gguf.num_heads);
  EXPECT_EQ(hf.num_kv_heads, gguf.num_kv_heads);
  EXPECT_EQ(hf.head_dim, gguf.head_dim);
  EXPECT_EQ(hf.max_position, gguf.max_position);
  EXPECT_FLOAT_EQ(static_cast<float>(hf.norm_eps), static_cast<float>(gguf.norm_eps));
  EXPECT_EQ(hf.sandwich_norm, gguf.sandwich_norm);
  EXPECT_EQ(hf.qk_norm, gguf.qk_norm);
  EXPECT_EQ(hf.qkv_bias, gguf.qkv_bias);
  EXPECT_EQ(hf.tied_head, gguf.tied_head);
  EXPECT_EQ(hf.activation, gguf.activation);
  EXPECT_EQ(hf.embedding_scale, gguf.embedding_scale);
  EXPECT_EQ(hf.attention_softcap, gguf.attention_softcap);
  EXPECT_EQ(hf.final_softcap, gguf.final_softcap);
  EXPECT_EQ(hf.moe.num_experts, gguf.moe.num_experts);
  EXPECT_EQ(hf.moe.top_k, gguf.moe.top_k);
  EXPECT_EQ(hf.moe.expert_intermediate_size, gguf.moe.expert_intermediate_size);
  EXPECT_EQ(hf.moe.shared_intermediate_size, gguf.moe.shared_intermediate_size);
  EXPECT_EQ(hf.moe.shared_gate, gguf.moe.shared_gate);
  EXPECT_EQ(hf.moe.renormalize, gguf.moe.renormalize);
  for (std::size_t i = 0; i < hf.layers.size(); ++i) {
    EXPECT_EQ(hf.layers[i].window, gguf.layers[i].window);
    EXPECT_EQ(hf.layers[i].moe, gguf.layers[i].moe);
    EXPECT_EQ(hf.layers[i].rope, gguf.layers[i].rope);
  }
  ASSERT_EQ(hf.ropes.size(), gguf.ropes.size());
  for (std::size_t i = 0; i < hf.ropes.size(); ++i) {
    ExpectSameRope(hf.ropes[i], gguf.ropes[i]);
  }
  // What one form says ends a text, the other says too; GGUF readers add the ends that they know by
  // name.
  for (const std::int32_t id : hf.eos_ids) {
    EXPECT_THAT(gguf.eos_ids, testing::Contains(id));
  }
}

std::string TwinOf(const std::string& name) {
  const std::string parts = Data(name) + "/model-00001-of-00003.gguf";
  return std::filesystem::exists(parts) ? parts : Data(name) + "/model.gguf";
}

std::vector<std::string> Twins() {
  std::vector<std::string> names;
  for (const std::string& name : FixtureNames("config.json")) {
    if (std::filesystem::exists(TwinOf(name))) {
      names.push_back(name);
    }
  }
  return names;
}

class EveryTwin : public testing::TestWithParam<std::string> {};

TEST_P(EveryTwin, SaysTheSameInBothForms) {
  const auto hf = OpenModel(Data(GetParam()));
  const auto gguf = OpenModel(TwinOf(GetParam()));
  ASSERT_TRUE(hf.ok()) << hf.error().message();
  ASSERT_TRUE(gguf.ok()) << gguf.error().message();
  ExpectSameSpec(hf->spec, gguf->spec);
  EXPECT_EQ(gguf->spec.rope_interleaved, gguf->spec.architecture == "llama");
  EXPECT_FALSE(gguf->spec.norm_plus_one);
  EXPECT_EQ(hf->weights.size(), gguf->weights.size());
  ASSERT_TRUE(gguf->tokenizer.vocabulary.has_value());
  EXPECT_EQ(gguf->tokenizer.vocabulary->tokens.size(),
            static_cast<std::size_t>(gguf->spec.vocab_size));
  EXPECT_TRUE(gguf->tokenizer.chat_template.has_value());
}

INSTANTIATE_TEST_SUITE_P(Data, EveryTwin, testing::ValuesIn(Twins()), [](const auto& test) {
  std::string name = test.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST(OpenModel, FixturesOfEveryFamilyAreThere) {
  EXPECT_THAT(Twins(),
              testing::IsSupersetOf({"llama",
                                     "llama3",
                                     "mixtral",
                                     "qwen2",
                                     "qwen3",
                                     "qwen2-moe",
                                     "qwen3-moe",
                                     "gemma2",
                                     "gemma3",
                                     "phi3",
                                     "phi3-longrope"}));
}

// Values of a float weight.
std::vector<float> Floats(const Model& model, const WeightRef& ref) {
  const auto bytes = Weights::Data(model.tensors, ref);
  std::vector<float> values;
  for (std::size_t i = 0; i < static_cast<std::size_t>(ref.rows * ref.cols); ++i) {
    if (ref.dtype() == DType::kF32) {
      float value = 0;
      std::memcpy(&value, bytes.data() + i * 4, 4);
      values.push_back(value);
      continue;
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * 2, 2);
    if (ref.dtype() == DType::kBF16) {
      values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U));
    } else {
      const int exponent = (bits >> 10) & 31;
      const int mantissa = bits & 1023;
      const double size =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      values.push_back(static_cast<float>((bits & 0x8000) != 0 ? -size : size));
    }
  }
  return values;
}

TEST(OpenModel, FusedAndStackedTensorsGiveTheSameValuesInBothForms) {
  struct Check {
    const char* name;
    Slot slot;
    std::int64_t expert;
  };
  const Check checks[] = {{"phi3", Slot::kQ, -1},
                          {"phi3", Slot::kK, -1},
                          {"phi3", Slot::kV, -1},
                          {"phi3", Slot::kGate, -1},
                          {"phi3", Slot::kUp, -1},
                          {"qwen3-moe", Slot::kExpertGate, 4},
                          {"qwen3-moe", Slot::kExpertUp, 5},
                          {"mixtral", Slot::kExpertDown, 3},
                          {"qwen2-moe", Slot::kSharedExpertGate, -1},
                          {"qwen2", Slot::kVBias, -1}};
  for (const Check& check : checks) {
    const auto hf = OpenModel(Data(check.name));
    const auto gguf = OpenModel(TwinOf(check.name));
    ASSERT_TRUE(hf.ok() && gguf.ok());
    const WeightRef* a = hf->weights.Find(check.slot, 1, check.expert);
    const WeightRef* b = gguf->weights.Find(check.slot, 1, check.expert);
    ASSERT_TRUE(a != nullptr && b != nullptr) << check.name << " " << SlotName(check.slot);
    EXPECT_EQ(Floats(*hf, *a), Floats(*gguf, *b)) << check.name << " " << SlotName(check.slot);
  }
}

// --- End tokens: the union over every file that names one (case 13). ---

TEST(OpenModel, UnitesTheEndTokensOfAllFiles) {
  const TempDir dir;
  std::string config = TinyHfConfig();
  config.insert(1, R"("eos_token_id":3,)");
  dir.Write("config.json", config);
  dir.Write("model.safetensors", F32File(TinyHfTensors()));
  dir.Write("generation_config.json",
            R"({"eos_token_id":[3,4,99],"temperature":0.6,"top_k":20,"top_p":0.9})");
  dir.Write(
      "tokenizer_config.json",
      R"({"eos_token":{"content":"<end>"},"added_tokens_decoder":{"5":{"content":"<end>"}}})");
  auto model = OpenModel(dir.path());
  ASSERT_TRUE(model.ok()) << model.error().message();
  EXPECT_THAT(model->spec.eos_ids, testing::ElementsAre(3, 4, 5));  // 99 is outside the vocabulary
  EXPECT_EQ(model->generation.temperature, 0.6);
  EXPECT_EQ(model->generation.top_k, 20);
  EXPECT_FALSE(model->generation.min_p.has_value());

  dir.Write("tokenizer_config.json", R"({"eos_token":"<end>"})");
  dir.Write("tokenizer.json",
            R"({"model":{"vocab":{"a":1}},"added_tokens":[{"id":6,"content":"<end>"}]})");
  model = OpenModel(dir.path());
  ASSERT_TRUE(model.ok()) << model.error().message();
  EXPECT_THAT(model->spec.eos_ids, testing::ElementsAre(3, 4, 6));
}

TEST(OpenModel, TakesEndTokensFromGgufKeysAndNames) {
  const TempDir dir;
  GgufSpec spec = TinyGgufLlama();
  spec.AddString("tokenizer.ggml.model", "gpt2");
  spec.AddStrings("tokenizer.ggml.tokens", {"a", "<eos>", "<turn>", "<|im_end|>", "<|eot_id|>"});
  std::string types = Bytes<std::uint32_t>(9) + Bytes<std::uint32_t>(5) + Bytes<std::uint64_t>(5);
  for (const std::int32_t type : {1, 3, 3, 3, 1}) {
    types += Bytes(type);
  }
  spec.Add("tokenizer.ggml.token_type", types);
  spec.AddU32("tokenizer.ggml.eos_token_id", 1);
  spec.AddU32("tokenizer.ggml.eot_token_id", 2);
  const auto model = OpenModel(dir.Write("a.gguf", spec.Encode()));
  ASSERT_TRUE(model.ok()) << model.error().message();
  // "<|eot_id|>" is ordinary text here.
  EXPECT_THAT(model->spec.eos_ids, testing::ElementsAre(1, 2, 3));
}

TEST(OpenModel, ReadsChatTemplatesFromFiles) {
  const TempDir dir;
  dir.Write("config.json", TinyHfConfig());
  dir.Write("model.safetensors", F32File(TinyHfTensors()));
  dir.Write("chat_template.json", R"({"chat_template":"from json"})");
  EXPECT_EQ(OpenModel(dir.path())->tokenizer.chat_template, "from json");
  dir.Write("chat_template.jinja", "from jinja");
  dir.Write("additional_chat_templates/tool_use.jinja", "tools");
  const auto model = OpenModel(dir.path());
  EXPECT_EQ(model->tokenizer.chat_template, "from jinja");
  EXPECT_THAT(model->tokenizer.named_templates,
              testing::ElementsAre(std::pair("tool_use", "tools")));
}

TEST(OpenModel, SaysWhatIsMissing) {
  const TempDir dir;
  EXPECT_THAT(OpenModel(dir.path() + "/none").error().message(),
              HasSubstr("no such file or folder"));
  EXPECT_THAT(OpenModel(dir.path()).error().message(), HasSubstr("holds no model"));
  dir.Write("config.json", TinyHfConfig());
  EXPECT_THAT(OpenModel(dir.path()).error().message(), HasSubstr("neither model.safetensors"));
}

TEST(OpenModel, RefusesUnknownGgufArchitecturesAndRopes) {
  const TempDir dir;
  GgufSpec spec = TinyGgufLlama();
  spec.pairs[0] = {"general.architecture", Bytes<std::uint32_t>(8) + GgufString("mamba")};
  EXPECT_THAT(OpenModel(dir.Write("a.gguf", spec.Encode())).error().message(),
              testing::AllOf(HasSubstr("mamba"), HasSubstr("qwen2")));
  spec = TinyGgufLlama();
  spec.AddString("llama.rope.scaling.type", "spiral");
  EXPECT_THAT(OpenModel(dir.Write("a.gguf", spec.Encode())).error().message(), HasSubstr("spiral"));
  spec = TinyGgufLlama();
  spec.AddTensor("rope_freqs.weight", {5});
  EXPECT_THAT(OpenModel(dir.Write("a.gguf", spec.Encode())).error().message(),
              HasSubstr("rope_freqs.weight"));
}

TEST(OpenModel, ReadsRopeScalingOfGguf) {
  const TempDir dir;
  GgufSpec spec = TinyGgufLlama();
  spec.AddString("llama.rope.scaling.type", "linear");
  spec.AddF32("llama.rope.scaling.factor", 4);
  auto model = OpenModel(dir.Write("a.gguf", spec.Encode()));
  ASSERT_TRUE(model.ok()) << model.error().message();
  EXPECT_EQ(model->spec.ropes[0].kind, spec::RopeKind::kLinear);
  EXPECT_EQ(model->spec.ropes[0].factor, 4);
  spec.pairs[spec.pairs.size() - 2] = {"llama.rope.scaling.type",
                                       Bytes<std::uint32_t>(8) + GgufString("yarn")};
  spec.AddU32("llama.rope.scaling.original_context_length", 32);
  spec.AddTensor("rope_freqs.weight", {8});
  model = OpenModel(dir.Write("a.gguf", spec.Encode()));
  ASSERT_TRUE(model.ok()) << model.error().message();
  EXPECT_EQ(model->spec.ropes[0].kind, spec::RopeKind::kYarn);
  EXPECT_EQ(model->spec.ropes[0].original_max_position, 32);
  EXPECT_EQ(model->spec.ropes[0].freq_factors.size(), 8U);
}

}  // namespace
}  // namespace inferd::store
