// SPDX-License-Identifier: Apache-2.0
// config.json as written by many hands: rope fields (case 49), windows (case 65), defaults,
// refusals by name.
#include "store/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace inferd::store {
namespace {

using spec::ModelSpec;
using spec::RopeKind;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

// A config of four layers, 64 hidden values and two heads of 32, with `more` behind it.
std::string Config(const std::string& architecture, const std::string& more) {
  return R"({"architectures":[")" + architecture +
         R"("],"vocab_size":100,"hidden_size":64,"intermediate_size":128,
"num_hidden_layers":4,"num_attention_heads":2,"num_key_value_heads":1,"max_position_embeddings":2048)" +
         (more.empty() ? "" : "," + more) + "}";
}

ModelSpec Parse(const std::string& architecture, const std::string& more = "") {
  auto config = ParseHfConfig("config.json", Config(architecture, more));
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message());
  return config.ok() ? config->spec : ModelSpec();
}

std::string Refusal(const std::string& architecture, const std::string& more) {
  const auto config = ParseHfConfig("config.json", Config(architecture, more));
  EXPECT_FALSE(config.ok()) << more;
  return config.ok() ? "" : config.error().message();
}

std::vector<std::int64_t> Windows(const ModelSpec& spec) {
  std::vector<std::int64_t> windows;
  for (const spec::LayerSpec& layer : spec.layers) {
    windows.push_back(layer.window);
  }
  return windows;
}

constexpr const char* kLlama = "LlamaForCausalLM";

TEST(HfConfig, AbsentOrNullRopeScalingIsPlainRope) {
  for (const char* more :
       {"", R"("rope_scaling":null)", R"("rope_scaling":{"rope_type":"default"})"}) {
    const ModelSpec spec = Parse(kLlama, more);
    ASSERT_EQ(spec.ropes.size(), 1U);
    EXPECT_EQ(spec.ropes[0].kind, RopeKind::kDefault);
    EXPECT_EQ(spec.ropes[0].theta, 10'000);
    EXPECT_EQ(spec.ropes[0].rotary_dim, 32);
  }
}

TEST(HfConfig, ReadsEveryRopeTypeUnderBothNames) {
  for (const char* key : {"type", "rope_type"}) {
    const auto rope = [&](const std::string& type, const std::string& more) {
      return Parse(kLlama,
                   R"("rope_theta":5e5,"rope_scaling":{")" + std::string(key) + R"(":")" + type +
                       "\"" + more + "}")
          .ropes[0];
    };
    const auto linear = rope("linear", R"(,"factor":4)");
    EXPECT_EQ(linear.kind, RopeKind::kLinear);
    EXPECT_EQ(linear.factor, 4);
    EXPECT_EQ(linear.theta, 5e5);
    const auto dynamic = rope("dynamic", R"(,"factor":2.0)");
    EXPECT_EQ(dynamic.kind, RopeKind::kDynamic);
    EXPECT_EQ(dynamic.original_max_position, 2048);
    const auto yarn =
        rope("yarn", R"(,"factor":4,"original_max_position_embeddings":512,"beta_fast":16)");
    EXPECT_EQ(yarn.kind, RopeKind::kYarn);
    EXPECT_EQ(yarn.original_max_position, 512);
    EXPECT_EQ(yarn.beta_fast, 16);
    EXPECT_EQ(yarn.beta_slow, 1);
    const auto llama3 = rope(
        "llama3",
        R"(,"factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":1024)");
    EXPECT_EQ(llama3.kind, RopeKind::kLlama3);
    EXPECT_EQ(llama3.high_freq_factor, 4);
  }
}

TEST(HfConfig, YarnWithoutOriginalLengthTakesTheContextLength) {
  EXPECT_EQ(Parse(kLlama, R"("rope_scaling":{"rope_type":"yarn","factor":4})")
                .ropes[0]
                .original_max_position,
            2048);
}

TEST(HfConfig, ReadsRopeParametersFlatAndPerKindOfLayer) {
  const ModelSpec flat =
      Parse(kLlama, R"("rope_parameters":{"rope_type":"linear","factor":2,"rope_theta":123})");
  EXPECT_EQ(flat.ropes[0].kind, RopeKind::kLinear);
  EXPECT_EQ(flat.ropes[0].theta, 123);
  const ModelSpec nested =
      Parse("Gemma3ForCausalLM",
            R"("sliding_window_pattern":2,"rope_parameters":{"full_attention":{"rope_type":"linear",
"factor":8,"rope_theta":1e6},"sliding_attention":{"rope_type":"default","rope_theta":777}})");
  ASSERT_EQ(nested.ropes.size(), 2U);
  EXPECT_EQ(nested.ropes[0].kind, RopeKind::kLinear);
  EXPECT_EQ(nested.ropes[1].kind, RopeKind::kDefault);
  EXPECT_EQ(nested.ropes[1].theta, 777);
  EXPECT_EQ(nested.layers[0].rope, 1);
  EXPECT_EQ(nested.layers[1].rope, 0);
}

TEST(HfConfig, RefusesUnknownAndIncompleteRopes) {
  EXPECT_THAT(Refusal(kLlama, R"("rope_scaling":{"type":"mrope","mrope_section":[1,2]})"),
              HasSubstr("mrope"));
  EXPECT_THAT(Refusal(kLlama, R"("rope_scaling":{"rope_type":"default","mrope_section":[1,2]})"),
              HasSubstr("mrope"));
  EXPECT_THAT(Refusal(kLlama, R"("rope_scaling":{"rope_type":"spiral"})"), HasSubstr("spiral"));
  EXPECT_THAT(Refusal(kLlama, R"("rope_scaling":{"rope_type":"linear"})"),
              HasSubstr("factor is absent"));
  EXPECT_THAT(Refusal(kLlama, R"("rope_scaling":{"rope_type":"dynamic","factor":0})"),
              HasSubstr("factor is 0"));
  EXPECT_THAT(Refusal(kLlama, R"("rope_scaling":{"rope_type":"llama3","factor":8})"),
              HasSubstr("low_freq_factor is absent"));
  EXPECT_THAT(Refusal(kLlama, R"("rope_scaling":{"rope_type":"linear","type":"yarn","factor":2})"),
              AllOf(HasSubstr("linear"), HasSubstr("yarn")));
  EXPECT_THAT(Refusal(kLlama, R"("rope_scaling":"linear")"),
              HasSubstr("rope_scaling is not an object"));
  EXPECT_THAT(Refusal(kLlama, R"("rope_theta":-1)"), HasSubstr("rope_theta -1"));
}

TEST(HfConfig, ReadsLongRopeOfPhi3) {
  const std::string factors = "[1,1,1,1,1,1,1,1,1,1,1,1]";
  const ModelSpec spec =
      Parse("Phi3ForCausalLM",
            R"("original_max_position_embeddings":512,"partial_rotary_factor":0.75,"rope_scaling":
{"type":"su","short_factor":)" +
                factors + R"(,"long_factor":)" + factors + "}");
  EXPECT_EQ(spec.ropes[0].kind, RopeKind::kLongRope);
  EXPECT_EQ(spec.ropes[0].rotary_dim, 24);
  EXPECT_EQ(spec.ropes[0].original_max_position, 512);
  EXPECT_EQ(spec.ropes[0].factor, 4);
  EXPECT_THAT(Refusal("Phi3ForCausalLM",
                      R"("rope_scaling":{"type":"longrope","short_factor":[1],"long_factor":[1]})"),
              HasSubstr("need 16 each"));
}

TEST(HfConfig, AWindowThatIsSwitchedOffIsNone) {
  EXPECT_THAT(
      Windows(Parse("Qwen2ForCausalLM", R"("use_sliding_window":false,"sliding_window":4096)")),
      Each(0));
  EXPECT_THAT(Windows(Parse("Qwen2ForCausalLM", R"("sliding_window":4096)")), Each(0));
  EXPECT_THAT(
      Windows(Parse("Qwen2ForCausalLM", R"("use_sliding_window":true,"sliding_window":null)")),
      Each(0));
  EXPECT_THAT(
      Windows(Parse("Qwen2ForCausalLM",
                    R"("use_sliding_window":true,"sliding_window":64,"max_window_layers":4)")),
      Each(0));
  EXPECT_THAT(Windows(Parse("MistralForCausalLM", R"("sliding_window":null)")), Each(0));
  EXPECT_THAT(Windows(Parse(kLlama, R"("sliding_window":64)")), Each(0));
  EXPECT_THAT(
      Windows(Parse("MixtralForCausalLM", R"("num_local_experts":4,"num_experts_per_tok":2)")),
      Each(0));
}

TEST(HfConfig, WindowsFollowTheFamilysRule) {
  EXPECT_THAT(Windows(Parse("MistralForCausalLM", R"("sliding_window":64)")), Each(64));
  EXPECT_THAT(Windows(Parse("MistralForCausalLM")), Each(4096));
  EXPECT_THAT(
      Windows(Parse("Qwen2ForCausalLM",
                    R"("use_sliding_window":true,"sliding_window":64,"max_window_layers":3)")),
      ElementsAre(0, 0, 0, 64));
  EXPECT_THAT(Windows(Parse("Gemma2ForCausalLM", R"("sliding_window":64)")),
              ElementsAre(64, 0, 64, 0));
  EXPECT_THAT(
      Windows(Parse("Gemma3ForCausalLM", R"("sliding_window":64,"sliding_window_pattern":3)")),
      ElementsAre(64, 64, 0, 64));
  EXPECT_THAT(
      Windows(Parse("Gemma3ForCausalLM", R"("sliding_window":64,"layer_types":["full_attention",
"sliding_attention","full_attention","full_attention"])")),
      ElementsAre(0, 64, 0, 0));
}

TEST(HfConfig, NamesContradictionsOfWindows) {
  const std::string types =
      R"("layer_types":["full_attention","sliding_attention","full_attention","full_attention"])";
  EXPECT_THAT(Refusal("Qwen2ForCausalLM", R"("use_sliding_window":false,)" + types),
              HasSubstr("layer_types[1]"));
  EXPECT_THAT(Refusal("Gemma3ForCausalLM", R"("layer_types":["full_attention"])"),
              HasSubstr("1 entries for 4 layers"));
  EXPECT_THAT(Refusal("Gemma3ForCausalLM",
                      R"("layer_types":["full_attention","chunked_attention","x","x"])"),
              HasSubstr("chunked_attention"));
  EXPECT_THAT(Refusal("Gemma3ForCausalLM", R"("sliding_window_pattern":0)"),
              HasSubstr("sliding_window_pattern is 0"));
}

TEST(HfConfig, FillsTheTraitsOfFamilies) {
  const ModelSpec qwen2 = Parse("Qwen2ForCausalLM");
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias);
  const ModelSpec biased = Parse(kLlama, R"("attention_bias":true,"mlp_bias":true)");
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias && biased.mlp_bias);
  const ModelSpec qwen3 = Parse("Qwen3ForCausalLM");
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128);
  const ModelSpec gemma =
      Parse("Gemma2ForCausalLM", R"("query_pre_attn_scalar":144,"final_logit_softcapping":30,
"attn_logit_softcapping":null,"hidden_activation":"gelu_pytorch_tanh")");
  EXPECT_TRUE(gemma.norm_plus_one && gemma.sandwich_norm && gemma.tied_head);
  EXPECT_EQ(gemma.embedding_scale, 8);
  EXPECT_NEAR(gemma.attention_scale, 1.0 / 12, 1e-12);
  EXPECT_EQ(gemma.final_softcap, 30);
  EXPECT_EQ(gemma.attention_softcap, 0);
  EXPECT_EQ(gemma.activation, spec::Activation::kGeluTanh);
}

TEST(HfConfig, ReadsExperts) {
  const ModelSpec mixtral =
      Parse("MixtralForCausalLM", R"("num_local_experts":8,"num_experts_per_tok":2)");
  EXPECT_EQ(mixtral.moe.num_experts, 8);
  EXPECT_EQ(mixtral.moe.expert_intermediate_size, 128);
  EXPECT_TRUE(mixtral.moe.renormalize);
  EXPECT_TRUE(mixtral.layers[0].moe);
  const ModelSpec qwen = Parse("Qwen2MoeForCausalLM", R"("num_experts":6,"num_experts_per_tok":2,
"moe_intermediate_size":32,"shared_expert_intermediate_size":48,"decoder_sparse_step":2,"mlp_only_layers":[3])");
  EXPECT_EQ(qwen.moe.shared_intermediate_size, 48);
  EXPECT_TRUE(qwen.moe.shared_gate);
  EXPECT_FALSE(qwen.moe.renormalize);
  EXPECT_FALSE(qwen.layers[0].moe);
  EXPECT_TRUE(qwen.layers[1].moe);
  EXPECT_FALSE(qwen.layers[3].moe);
}

constexpr const char* kLatent =
    R"("kv_lora_rank":32,"qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":32,"head_dim":8,
"n_routed_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":24,"n_shared_experts":2)";

// The keys of DeepSeek-V2-Lite; remote code and this, but not transformers, scale attention by
// mscale_all_dim.
TEST(HfConfig, ReadsDeepseekV2) {
  const ModelSpec spec = Parse("DeepseekV2ForCausalLM",
                               std::string(kLatent) +
                                   R"(,"q_lora_rank":null,"first_k_dense_replace":1,"n_group":1,
"topk_group":1,"topk_method":"greedy","norm_topk_prob":false,"routed_scaling_factor":1.0,"rope_scaling":
{"beta_fast":32,"beta_slow":1,"factor":40,"mscale":0.707,"mscale_all_dim":0.707,
"original_max_position_embeddings":4096,"type":"yarn"})");
  EXPECT_EQ(spec.latent.kv_rank, 32);
  EXPECT_EQ(spec.latent.q_rank, 0);
  EXPECT_EQ(spec.latent.width(), 40);
  EXPECT_EQ(spec.head_dim, 24);
  EXPECT_EQ(spec.value_dim(), 32);
  EXPECT_EQ(spec.num_kv_heads, 1);
  EXPECT_TRUE(spec.rope_interleaved);
  EXPECT_EQ(spec.ropes[0].kind, RopeKind::kYarn);
  EXPECT_EQ(spec.ropes[0].rotary_dim, 8);
  const double mscale = 0.1 * 0.707 * std::log(40.0) + 1;
  EXPECT_NEAR(spec.attention_scale, mscale * mscale / std::sqrt(24.0), 1e-12);
  EXPECT_FALSE(spec.layers[0].moe);
  EXPECT_TRUE(spec.layers[1].moe);
  EXPECT_EQ(spec.moe.shared_intermediate_size, 48);
  EXPECT_FALSE(spec.moe.shared_gate);
  EXPECT_FALSE(spec.moe.renormalize);
  EXPECT_EQ(spec.moe.groups, 1);
  EXPECT_FALSE(spec.moe.choice_bias);
  EXPECT_EQ(spec.moe.score, spec::RouterScore::kSoftmax);
}

TEST(HfConfig, ReadsDeepseekV3) {
  const std::string groups = R"(,"q_lora_rank":48,"n_group":4,"topk_group":2)";
  // transformers 5 saves neither topk_method nor scoring_func.
  for (const char* more : {R"(,"topk_method":"noaux_tc","scoring_func":"sigmoid")", ""}) {
    const ModelSpec spec =
        Parse("DeepseekV3ForCausalLM",
              kLatent + groups + more + R"(,"norm_topk_prob":true,"routed_scaling_factor":2.5)");
    EXPECT_EQ(spec.latent.q_rank, 48);
    EXPECT_EQ(spec.moe.score, spec::RouterScore::kSigmoid);
    EXPECT_TRUE(spec.moe.choice_bias);
    EXPECT_EQ(spec.moe.groups, 4);
    EXPECT_EQ(spec.moe.top_groups, 2);
    EXPECT_EQ(spec.moe.group_best, 2);
    EXPECT_TRUE(spec.moe.renormalize);
    EXPECT_EQ(spec.moe.routed_scale, 2.5);
    EXPECT_NEAR(spec.attention_scale, 1 / std::sqrt(24.0), 1e-12);
  }
  EXPECT_FALSE(Parse("DeepseekV3ForCausalLM", kLatent + groups + R"(,"rope_interleave":false)")
                   .rope_interleaved);
}

// V2's code: normalised, or scaled. V3's: normalised and scaled. One expert is never normalised.
TEST(HfConfig, DeepseekScalesTheWeightsOfItsExperts) {
  const std::string more = R"(,"routed_scaling_factor":16.0,"n_group":4,"topk_group":2,)";
  const auto v2 = [&](const std::string& normalise) {
    return Parse("DeepseekV2ForCausalLM", kLatent + more + normalise).moe;
  };
  EXPECT_EQ(v2(R"("norm_topk_prob":false)").routed_scale, 16);
  EXPECT_EQ(v2(R"("norm_topk_prob":true)").routed_scale, 1);
  EXPECT_TRUE(v2(R"("norm_topk_prob":true)").renormalize);
  const auto v3 = Parse("DeepseekV3ForCausalLM", kLatent + more + R"("norm_topk_prob":true)").moe;
  EXPECT_EQ(v3.routed_scale, 16);
  EXPECT_TRUE(v3.renormalize);
  std::string one = kLatent;
  one.replace(one.find("per_tok\":2"), 10, "per_tok\":1");
  const auto single = Parse("DeepseekV2ForCausalLM", one + more + R"("norm_topk_prob":true)").moe;
  EXPECT_EQ(single.top_k, 1);
  EXPECT_FALSE(single.renormalize);
  EXPECT_EQ(single.routed_scale, 16);
}

TEST(HfConfig, RefusesWhatDeepseekModelsDoNotSay) {
  EXPECT_THAT(Refusal("DeepseekV2ForCausalLM", ""), HasSubstr("kv_lora_rank is absent"));
  EXPECT_THAT(Refusal("DeepseekV2ForCausalLM", std::string(kLatent) + R"(,"topk_method":"best")"),
              AllOf(HasSubstr("best"), HasSubstr("group_limited_greedy")));
  EXPECT_THAT(Refusal("DeepseekV3ForCausalLM", kLatent), HasSubstr("n_group is absent"));
  EXPECT_THAT(Refusal("DeepseekV2ForCausalLM", std::string(kLatent) + R"(,"q_lora_rank":0)"),
              HasSubstr("q_lora_rank is 0"));
  EXPECT_THAT(Refusal("DeepseekV2ForCausalLM", std::string(kLatent) + R"(,"scoring_func":"relu")"),
              HasSubstr("relu"));
}

TEST(HfConfig, ReadsTheTextPartOfAVisionModelWithItsDefaults) {
  const auto config =
      ParseHfConfig("config.json", R"({"architectures":["Gemma3ForConditionalGeneration"],
"eos_token_id":[1,106],"text_config":{"hidden_size":2560,"intermediate_size":10240,"model_type":"gemma3_text",
"num_hidden_layers":34,"rope_scaling":{"factor":8.0,"rope_type":"linear"},"sliding_window":1024},
"vision_config":{"hidden_size":1152}})");
  ASSERT_TRUE(config.ok()) << config.error().message();
  const ModelSpec& spec = config->spec;
  EXPECT_EQ(spec.vocab_size, 262'208);
  EXPECT_EQ(spec.hidden_size, 2560);
  EXPECT_EQ(spec.num_heads, 8);
  EXPECT_EQ(spec.num_kv_heads, 4);
  EXPECT_EQ(spec.head_dim, 256);
  EXPECT_EQ(spec.layers[4].window, 1024);
  EXPECT_EQ(spec.layers[5].window, 0);
  EXPECT_EQ(spec.ropes[0].kind, RopeKind::kLinear);
  EXPECT_EQ(spec.ropes[1].theta, 10'000);
  EXPECT_THAT(spec.eos_ids, ElementsAre(1, 106));
}

TEST(HfConfig, EosIsANumberOrAList) {
  EXPECT_THAT(Parse(kLlama, R"("eos_token_id":7)").eos_ids, testing::Contains(7));
  EXPECT_THAT(Parse(kLlama, R"("eos_token_id":[7,9])").eos_ids, testing::IsSupersetOf({7, 9}));
  EXPECT_EQ(Parse(kLlama, R"("bos_token_id":5)").bos_id, 5);
  EXPECT_THAT(Refusal(kLlama, R"("eos_token_id":"x")"), HasSubstr("eos_token_id"));
}

TEST(HfConfig, RefusesWhatItCannotRunByName) {
  EXPECT_THAT(Refusal("FalconForCausalLM", ""),
              AllOf(HasSubstr("FalconForCausalLM"), HasSubstr("LlamaForCausalLM")));
  for (const char* method : {"bitsandbytes", "hqq", "aqlm", "torchao"}) {
    EXPECT_THAT(
        Refusal(kLlama,
                R"("quantization_config":{"quant_method":")" + std::string(method) + R"("})"),
        HasSubstr(method));
  }
  EXPECT_THAT(Refusal(kLlama, R"("hidden_act":"relu2")"), HasSubstr("relu2"));
  EXPECT_THAT(Refusal("Gemma3ForCausalLM", R"("use_bidirectional_attention":true)"),
              HasSubstr("bidirectional"));
  EXPECT_THAT(Refusal(kLlama, R"("head_dim":"big")"),
              AllOf(HasSubstr("head_dim"), HasSubstr("big")));
  EXPECT_THAT(Refusal(kLlama, R"("head_dim":0)"), HasSubstr("head_dim is 0"));
  EXPECT_THAT(Refusal(kLlama, R"("hidden_size":64)"), HasSubstr("hidden_size occurs twice"));
  EXPECT_FALSE(ParseHfConfig("config.json", "{").ok());
  EXPECT_FALSE(ParseHfConfig("config.json", "[]").ok());
  EXPECT_FALSE(ParseHfConfig("config.json", R"({"architectures":["LlamaForCausalLM"]})").ok());
  EXPECT_FALSE(ParseHfConfig("config.json", R"({"architectures":"LlamaForCausalLM"})").ok());
}

TEST(HfConfig, ModelTypeStandsInForArchitectures) {
  const auto config = ParseHfConfig(
      "config.json",
      R"({"model_type":"qwen3","vocab_size":100,"hidden_size":64,"intermediate_size":128,
"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1})");
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_TRUE(config->spec.qk_norm);
}

}  // namespace
}  // namespace inferd::store
