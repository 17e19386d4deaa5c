// SPDX-License-Identifier: Apache-2.0
#include "spec/model_spec.h"

#include "unit/spec/real_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace inferd::spec {
namespace {

TEST(ModelSpec, AcceptsRealModels) {
  for (const ModelSpec& model :
       {Llama2_70B(), Llama3_8B(), Mixtral_8x7B(), Qwen2_72B(), Qwen3_30B_A3B(), Qwen25_05B()}) {
    EXPECT_TRUE(Validate(model).ok()) << model.name;
  }
}

struct Case {
  const char* message;
  std::function<void(ModelSpec*)> spoil;
};

TEST(ModelSpec, RefusesWhatNoDecoderCouldRun) {
  const Case cases[] = {
      {"vocabulary size is 0", [](ModelSpec* m) { m->vocab_size = 0; }},
      {"hidden size is -1", [](ModelSpec* m) { m->hidden_size = -1; }},
      {"32 attention heads are not a multiple of 5", [](ModelSpec* m) { m->num_kv_heads = 5; }},
      {"31 layers are described", [](ModelSpec* m) { m->layers.pop_back(); }},
      {"layer 3 names rope 1 of 1", [](ModelSpec* m) { m->layers[3].rope = 1; }},
      {"layer 2 has a window of -4", [](ModelSpec* m) { m->layers[2].window = -4; }},
      {"layer 0 has experts", [](ModelSpec* m) { m->layers[0].moe = true; }},
      {"3 of 128 dimensions", [](ModelSpec* m) { m->ropes[0].rotary_dim = 3; }},
      {"rope has base 0", [](ModelSpec* m) { m->ropes[0].theta = 0; }},
      {"rope has 5 factors", [](ModelSpec* m) { m->ropes[0].freq_factors.resize(5); }},
      {"9 of 8 experts",
       [](ModelSpec* m) {
         m->moe.num_experts = 8;
         m->moe.top_k = 9;
       }},
      {"norm epsilon", [](ModelSpec* m) { m->norm_eps = -1; }},
  };
  for (const Case& test : cases) {
    ModelSpec model = Llama3_8B();
    test.spoil(&model);
    const auto result = Validate(model);
    ASSERT_FALSE(result.ok()) << test.message;
    EXPECT_THAT(result.error().message(), testing::HasSubstr(test.message));
  }
}

TEST(ModelSpec, RefusesLatentsThatNoKernelHas) {
  EXPECT_TRUE(Validate(DeepseekV3()).ok());
  const auto refusal = [](auto change) {
    ModelSpec model = DeepseekV3();
    change(model);
    const auto result = Validate(model);
    EXPECT_FALSE(result.ok());
    return result.ok() ? std::string() : result.error().message();
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal([](ModelSpec& m) { m.latent.kv_rank = 500; }), HasSubstr("rank of 500"));
  EXPECT_THAT(refusal([](ModelSpec& m) { m.latent.kv_rank = 544; }), HasSubstr("at most 512"));
  EXPECT_THAT(refusal([](ModelSpec& m) { m.latent.value_dim = 72; }), HasSubstr("72 values"));
  EXPECT_THAT(refusal([](ModelSpec& m) { m.latent.rope_dim = 63; }), HasSubstr("128 + 63"));
  EXPECT_THAT(refusal([](ModelSpec& m) { m.num_kv_heads = 128; }), HasSubstr("one KV head"));
  EXPECT_THAT(refusal([](ModelSpec& m) { m.qkv_bias = true; }), HasSubstr("biases"));
  EXPECT_THAT(refusal([](ModelSpec& m) { m.layers[5].window = 9; }), HasSubstr("window"));
  EXPECT_THAT(refusal([](ModelSpec& m) { m.ropes[0].rotary_dim = 32; }),
              HasSubstr("rotates 32 of the 64"));
  EXPECT_THAT(refusal([](ModelSpec& m) { m.attention_scale = 1e200 * 1e200; }), HasSubstr("scale"));
  EXPECT_THAT(refusal([](ModelSpec& m) { m.moe.groups = 7; }), HasSubstr("7 groups"));
  EXPECT_THAT(refusal([](ModelSpec& m) { m.moe.top_k = 129; }), HasSubstr("129 experts"));
}

}  // namespace
}  // namespace inferd::spec
