// SPDX-License-Identifier: Apache-2.0
#include "store/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace inferd::store {
namespace {

using enum Slot;
using std::string_view;

// --- Names in safetensors. A slot may have several names; a model uses one of them. ---

#define INFERD_HF_TRUNK                                                         \
  {kEmbedding, "{M}embed_tokens.weight"}, {kHead, "lm_head.weight"},            \
      {kHead, "language_model.lm_head.weight"}, {kFinalNorm, "{M}norm.weight"}, \
      {kAttnNorm, "{M}layers.{L}.input_layernorm.weight"},                      \
      {kO, "{M}layers.{L}.self_attn.o_proj.weight"},                            \
      {kOBias, "{M}layers.{L}.self_attn.o_proj.bias"},                          \
      {kDown, "{M}layers.{L}.mlp.down_proj.weight"}, {                          \
    kDownBias, "{M}layers.{L}.mlp.down_proj.bias"                               \
  }

#define INFERD_HF_QKV                                                                           \
  {kQ, "{M}layers.{L}.self_attn.q_proj.weight"}, {kK, "{M}layers.{L}.self_attn.k_proj.weight"}, \
      {kV, "{M}layers.{L}.self_attn.v_proj.weight"},                                            \
      {kQBias, "{M}layers.{L}.self_attn.q_proj.bias"},                                          \
      {kKBias, "{M}layers.{L}.self_attn.k_proj.bias"},                                          \
      {kVBias, "{M}layers.{L}.self_attn.v_proj.bias"},                                          \
      {kQNorm, "{M}layers.{L}.self_attn.q_norm.weight"}, {                                      \
    kKNorm, "{M}layers.{L}.self_attn.k_norm.weight"                                             \
  }

#define INFERD_HF_GATE_UP                                                                   \
  {kGate, "{M}layers.{L}.mlp.gate_proj.weight"}, {kUp, "{M}layers.{L}.mlp.up_proj.weight"}, \
      {kGateBias, "{M}layers.{L}.mlp.gate_proj.bias"}, {                                    \
    kUpBias, "{M}layers.{L}.mlp.up_proj.bias"                                               \
  }

#define INFERD_HF_FFN_NORM {kFfnNorm, "{M}layers.{L}.post_attention_layernorm.weight"}

constexpr std::array kHfDense = std::to_array<NamePattern>({
    INFERD_HF_TRUNK,
    INFERD_HF_QKV,
    INFERD_HF_GATE_UP,
    INFERD_HF_FFN_NORM,
});

constexpr std::array kHfGemma = std::to_array<NamePattern>({
    INFERD_HF_TRUNK,
    INFERD_HF_QKV,
    INFERD_HF_GATE_UP,
    {kPostAttnNorm, "{M}layers.{L}.post_attention_layernorm.weight"},
    {kFfnNorm, "{M}layers.{L}.pre_feedforward_layernorm.weight"},
    {kPostFfnNorm, "{M}layers.{L}.post_feedforward_layernorm.weight"},
});

constexpr std::array kHfPhi3 = std::to_array<NamePattern>({
    INFERD_HF_TRUNK,
    INFERD_HF_FFN_NORM,
    {kQ, "{M}layers.{L}.self_attn.qkv_proj.weight", Part::kFusedQ},
    {kK, "{M}layers.{L}.self_attn.qkv_proj.weight", Part::kFusedK},
    {kV, "{M}layers.{L}.self_attn.qkv_proj.weight", Part::kFusedV},
    {kGate, "{M}layers.{L}.mlp.gate_up_proj.weight", Part::kFirstHalf},
    {kUp, "{M}layers.{L}.mlp.gate_up_proj.weight", Part::kSecondHalf},
});

constexpr std::array kHfMixtral = std::to_array<NamePattern>({
    INFERD_HF_TRUNK,
    INFERD_HF_QKV,
    INFERD_HF_FFN_NORM,
    {kRouter, "{M}layers.{L}.block_sparse_moe.gate.weight"},
    {kExpertGate, "{M}layers.{L}.block_sparse_moe.experts.{E}.w1.weight"},
    {kExpertUp, "{M}layers.{L}.block_sparse_moe.experts.{E}.w3.weight"},
    {kExpertDown, "{M}layers.{L}.block_sparse_moe.experts.{E}.w2.weight"},
    {kRouter, "{M}layers.{L}.mlp.gate.weight"},
    {kExpertGate, "{M}layers.{L}.mlp.experts.gate_up_proj", Part::kExpertFirstHalf},
    {kExpertUp, "{M}layers.{L}.mlp.experts.gate_up_proj", Part::kExpertSecondHalf},
    {kExpertDown, "{M}layers.{L}.mlp.experts.down_proj", Part::kExpert},
});

constexpr std::array kHfQwenMoe = std::to_array<NamePattern>({
    INFERD_HF_TRUNK,
    INFERD_HF_QKV,
    INFERD_HF_GATE_UP,
    INFERD_HF_FFN_NORM,
    {kRouter, "{M}layers.{L}.mlp.gate.weight"},
    {kExpertGate, "{M}layers.{L}.mlp.experts.{E}.gate_proj.weight"},
    {kExpertUp, "{M}layers.{L}.mlp.experts.{E}.up_proj.weight"},
    {kExpertDown, "{M}layers.{L}.mlp.experts.{E}.down_proj.weight"},
    {kExpertGate, "{M}layers.{L}.mlp.experts.gate_up_proj", Part::kExpertFirstHalf},
    {kExpertUp, "{M}layers.{L}.mlp.experts.gate_up_proj", Part::kExpertSecondHalf},
    {kExpertDown, "{M}layers.{L}.mlp.experts.down_proj", Part::kExpert},
    {kSharedGate, "{M}layers.{L}.mlp.shared_expert.gate_proj.weight"},
    {kSharedUp, "{M}layers.{L}.mlp.shared_expert.up_proj.weight"},
    {kSharedDown, "{M}layers.{L}.mlp.shared_expert.down_proj.weight"},
    {kSharedExpertGate, "{M}layers.{L}.mlp.shared_expert_gate.weight"},
});

constexpr std::array kHfDeepseek = std::to_array<NamePattern>({
    INFERD_HF_TRUNK,
    INFERD_HF_GATE_UP,
    INFERD_HF_FFN_NORM,
    {kQ, "{M}layers.{L}.self_attn.q_proj.weight"},
    {kQA, "{M}layers.{L}.self_attn.q_a_proj.weight"},
    {kQANorm, "{M}layers.{L}.self_attn.q_a_layernorm.weight"},
    {kQ, "{M}layers.{L}.self_attn.q_b_proj.weight"},
    {kKvA, "{M}layers.{L}.self_attn.kv_a_proj_with_mqa.weight"},
    {kKvANorm, "{M}layers.{L}.self_attn.kv_a_layernorm.weight"},
    {kKvB, "{M}layers.{L}.self_attn.kv_b_proj.weight"},
    {kRouter, "{M}layers.{L}.mlp.gate.weight"},
    {kRouterBias, "{M}layers.{L}.mlp.gate.e_score_correction_bias"},
    {kExpertGate, "{M}layers.{L}.mlp.experts.{E}.gate_proj.weight"},
    {kExpertUp, "{M}layers.{L}.mlp.experts.{E}.up_proj.weight"},
    {kExpertDown, "{M}layers.{L}.mlp.experts.{E}.down_proj.weight"},
    {kExpertGate, "{M}layers.{L}.mlp.experts.gate_up_proj", Part::kExpertFirstHalf},
    {kExpertUp, "{M}layers.{L}.mlp.experts.gate_up_proj", Part::kExpertSecondHalf},
    {kExpertDown, "{M}layers.{L}.mlp.experts.down_proj", Part::kExpert},
    {kSharedGate, "{M}layers.{L}.mlp.shared_experts.gate_proj.weight"},
    {kSharedUp, "{M}layers.{L}.mlp.shared_experts.up_proj.weight"},
    {kSharedDown, "{M}layers.{L}.mlp.shared_experts.down_proj.weight"},
});

#undef INFERD_HF_TRUNK
#undef INFERD_HF_QKV
#undef INFERD_HF_GATE_UP
#undef INFERD_HF_FFN_NORM

// --- Names in GGUF: one table for all, since llama.cpp's converter has one vocabulary of names.
// ---

constexpr std::array kGguf = std::to_array<NamePattern>({
    {kEmbedding, "token_embd.weight"},
    {kHead, "output.weight"},
    {kFinalNorm, "output_norm.weight"},
    {kAttnNorm, "blk.{L}.attn_norm.weight"},
    {kQ, "blk.{L}.attn_q.weight"},
    {kK, "blk.{L}.attn_k.weight"},
    {kV, "blk.{L}.attn_v.weight"},
    {kQ, "blk.{L}.attn_qkv.weight", Part::kFusedQ},
    {kK, "blk.{L}.attn_qkv.weight", Part::kFusedK},
    {kV, "blk.{L}.attn_qkv.weight", Part::kFusedV},
    {kO, "blk.{L}.attn_output.weight"},
    {kQBias, "blk.{L}.attn_q.bias"},
    {kKBias, "blk.{L}.attn_k.bias"},
    {kVBias, "blk.{L}.attn_v.bias"},
    {kOBias, "blk.{L}.attn_output.bias"},
    {kQNorm, "blk.{L}.attn_q_norm.weight"},
    {kKNorm, "blk.{L}.attn_k_norm.weight"},
    {kPostAttnNorm, "blk.{L}.post_attention_norm.weight"},
    {kFfnNorm, "blk.{L}.ffn_norm.weight"},
    {kPostFfnNorm, "blk.{L}.post_ffw_norm.weight"},
    {kGate, "blk.{L}.ffn_gate.weight"},
    {kUp, "blk.{L}.ffn_up.weight"},
    {kDown, "blk.{L}.ffn_down.weight"},
    {kGateBias, "blk.{L}.ffn_gate.bias"},
    {kUpBias, "blk.{L}.ffn_up.bias"},
    {kDownBias, "blk.{L}.ffn_down.bias"},
    {kRouter, "blk.{L}.ffn_gate_inp.weight"},
    {kExpertGate, "blk.{L}.ffn_gate_exps.weight", Part::kExpert},
    {kExpertUp, "blk.{L}.ffn_up_exps.weight", Part::kExpert},
    {kExpertDown, "blk.{L}.ffn_down_exps.weight", Part::kExpert},
    {kExpertGate, "blk.{L}.ffn_gate.{E}.weight"},
    {kExpertUp, "blk.{L}.ffn_up.{E}.weight"},
    {kExpertDown, "blk.{L}.ffn_down.{E}.weight"},
    {kSharedGate, "blk.{L}.ffn_gate_shexp.weight"},
    {kSharedUp, "blk.{L}.ffn_up_shexp.weight"},
    {kSharedDown, "blk.{L}.ffn_down_shexp.weight"},
    {kSharedExpertGate, "blk.{L}.ffn_gate_inp_shexp.weight"},
});

// Phi-3 has gate and up in one tensor under the name of up.
constexpr std::array kGgufPhi3 = std::to_array<NamePattern>({
    {kEmbedding, "token_embd.weight"},
    {kHead, "output.weight"},
    {kFinalNorm, "output_norm.weight"},
    {kAttnNorm, "blk.{L}.attn_norm.weight"},
    {kQ, "blk.{L}.attn_qkv.weight", Part::kFusedQ},
    {kK, "blk.{L}.attn_qkv.weight", Part::kFusedK},
    {kV, "blk.{L}.attn_qkv.weight", Part::kFusedV},
    {kO, "blk.{L}.attn_output.weight"},
    {kFfnNorm, "blk.{L}.ffn_norm.weight"},
    {kGate, "blk.{L}.ffn_up.weight", Part::kFirstHalf},
    {kUp, "blk.{L}.ffn_up.weight", Part::kSecondHalf},
    {kDown, "blk.{L}.ffn_down.weight"},
});

constexpr std::array<string_view, 1> kPlainTrunk = {"model."};
constexpr std::array<string_view, 4> kGemma3Trunks = {
    "model.", "language_model.model.", "model.language_model.", "language_model."};
constexpr std::array<string_view, 6> kGemma3Ignored = {"vision_tower.",
                                                       "multi_modal_projector.",
                                                       "model.vision_tower.",
                                                       "model.multi_modal_projector.",
                                                       "v.",
                                                       "mm."};

constexpr std::array<string_view, 1> kLlama = {"LlamaForCausalLM"};
constexpr std::array<string_view, 1> kMistral = {"MistralForCausalLM"};
constexpr std::array<string_view, 1> kMixtral = {"MixtralForCausalLM"};
constexpr std::array<string_view, 1> kQwen2 = {"Qwen2ForCausalLM"};
constexpr std::array<string_view, 1> kQwen3 = {"Qwen3ForCausalLM"};
constexpr std::array<string_view, 1> kQwen2Moe = {"Qwen2MoeForCausalLM"};
constexpr std::array<string_view, 1> kQwen3Moe = {"Qwen3MoeForCausalLM"};
constexpr std::array<string_view, 1> kGemma2 = {"Gemma2ForCausalLM"};
constexpr std::array<string_view, 2> kGemma3 = {"Gemma3ForCausalLM",
                                                "Gemma3ForConditionalGeneration"};
constexpr std::array<string_view, 1> kPhi3 = {"Phi3ForCausalLM"};
constexpr std::array<string_view, 1> kDeepseekV2 = {"DeepseekV2ForCausalLM"};
constexpr std::array<string_view, 1> kDeepseekV3 = {"DeepseekV3ForCausalLM"};

const std::array kFamilies = std::to_array<Family>({
    {
        .name = "Llama",
        .architectures = kLlama,
        .model_type = "llama",
        .gguf = "llama",
        .defaults = {},
        .gguf_interleaved = true,
        .trunks = kPlainTrunk,
        .hf_names = kHfDense,
        .gguf_names = kGguf,
        .ignored = {},
    },
    {
        // In GGUF files Mistral and Mixtral call themselves llama.
        .name = "Mistral",
        .architectures = kMistral,
        .model_type = "mistral",
        .gguf = "",
        .defaults = {.num_kv_heads = 8, .max_position = 131'072, .window = 4096},
        .window = WindowRule::kAll,
        .trunks = kPlainTrunk,
        .hf_names = kHfDense,
        .gguf_names = {},
        .ignored = {},
    },
    {
        .name = "Mixtral",
        .architectures = kMixtral,
        .model_type = "mixtral",
        .gguf = "",
        .defaults =
            {.num_kv_heads = 8, .max_position = 131'072, .norm_eps = 1e-5, .rope_theta = 1e6},
        .window = WindowRule::kAll,
        .moe = MoeRule::kEveryLayer,
        .trunks = kPlainTrunk,
        .hf_names = kHfMixtral,
        .gguf_names = {},
        .ignored = {},
    },
    {
        .name = "Qwen2",
        .architectures = kQwen2,
        .model_type = "qwen2",
        .gguf = "qwen2",
        .defaults = {.num_kv_heads = 32,
                     .max_position = 32'768,
                     .window = 4096,
                     .use_sliding_window = false},
        .qkv_bias = true,
        .window = WindowRule::kFromLayer,
        .trunks = kPlainTrunk,
        .hf_names = kHfDense,
        .gguf_names = kGguf,
        .ignored = {},
    },
    {
        .name = "Qwen3",
        .architectures = kQwen3,
        .model_type = "qwen3",
        .gguf = "qwen3",
        .defaults = {.num_kv_heads = 32,
                     .head_dim = 128,
                     .max_position = 32'768,
                     .window = 4096,
                     .use_sliding_window = false},
        .qk_norm = true,
        .window = WindowRule::kFromLayer,
        .trunks = kPlainTrunk,
        .hf_names = kHfDense,
        .gguf_names = kGguf,
        .ignored = {},
    },
    {
        .name = "Qwen2-MoE",
        .architectures = kQwen2Moe,
        .model_type = "qwen2_moe",
        .gguf = "qwen2moe",
        .defaults = {.num_kv_heads = 16,
                     .max_position = 32'768,
                     .window = 4096,
                     .use_sliding_window = false},
        .qkv_bias = true,
        .window = WindowRule::kEvenLayers,
        .moe = MoeRule::kSparseStep,
        .renormalize = false,
        .has_norm_topk_prob = true,
        .shared_expert = true,
        .trunks = kPlainTrunk,
        .hf_names = kHfQwenMoe,
        .gguf_names = kGguf,
        .ignored = {},
    },
    {
        .name = "Qwen3-MoE",
        .architectures = kQwen3Moe,
        .model_type = "qwen3_moe",
        .gguf = "qwen3moe",
        .defaults = {.num_kv_heads = 4,
                     .max_position = 32'768,
                     .window = 4096,
                     .use_sliding_window = false},
        .qk_norm = true,
        .window = WindowRule::kAll,
        .moe = MoeRule::kSparseStep,
        .has_norm_topk_prob = true,
        .trunks = kPlainTrunk,
        .hf_names = kHfQwenMoe,
        .gguf_names = kGguf,
        .ignored = {},
    },
    {
        .name = "Gemma 2",
        .architectures = kGemma2,
        .model_type = "gemma2",
        .gguf = "gemma2",
        .defaults = {.num_kv_heads = 4,
                     .head_dim = 256,
                     .max_position = 8192,
                     .window = 4096,
                     .query_pre_attn_scalar = 256,
                     .tied_head = true},
        .sandwich_norm = true,
        .norm_plus_one = true,
        .scaled_embedding = true,
        .activation = spec::Activation::kGeluTanh,
        .window = WindowRule::kAlternating,
        .pattern = 2,
        .gguf_wide_scale_layers = 46,
        .trunks = kPlainTrunk,
        .hf_names = kHfGemma,
        .gguf_names = kGguf,
        .ignored = {},
    },
    {
        .name = "Gemma 3",
        .architectures = kGemma3,
        .model_type = "gemma3_text",
        .gguf = "gemma3",
        .defaults = {.vocab_size = 262'208,
                     .hidden_size = 2304,
                     .intermediate_size = 9216,
                     .num_layers = 26,
                     .num_heads = 8,
                     .num_kv_heads = 4,
                     .head_dim = 256,
                     .max_position = 131'072,
                     .rope_theta = 1e6,
                     .window = 4096,
                     .query_pre_attn_scalar = 256,
                     .tied_head = true},
        .qk_norm = true,
        .sandwich_norm = true,
        .norm_plus_one = true,
        .scaled_embedding = true,
        .activation = spec::Activation::kGeluTanh,
        .local_rope_theta = 10'000,
        .window = WindowRule::kAlternating,
        .pattern = 6,
        .gguf_wide_scale_layers = 62,
        .trunks = kGemma3Trunks,
        .hf_names = kHfGemma,
        .gguf_names = kGguf,
        .ignored = kGemma3Ignored,
    },
    {
        .name = "Phi-3",
        .architectures = kPhi3,
        .model_type = "phi3",
        .gguf = "phi3",
        .defaults = {.max_position = 4096, .norm_eps = 1e-5},
        .window = WindowRule::kAll,
        .trunks = kPlainTrunk,
        .hf_names = kHfPhi3,
        .gguf_names = kGgufPhi3,
        .ignored = {},
    },
    {
        .name = "DeepSeek-V2",
        .architectures = kDeepseekV2,
        .model_type = "deepseek_v2",
        .gguf = "",
        .defaults = {},
        .moe = MoeRule::kAfterDense,
        .has_norm_topk_prob = true,
        .latent = true,
        .trunks = kPlainTrunk,
        .hf_names = kHfDeepseek,
        .gguf_names = {},
        .ignored = {},
    },
    {
        .name = "DeepSeek-V3",
        .architectures = kDeepseekV3,
        .model_type = "deepseek_v3",
        .gguf = "",
        .defaults = {.max_position = 4096},
        .moe = MoeRule::kAfterDense,
        .has_norm_topk_prob = true,
        .latent = true,
        .choice_bias = true,
        .guessing_layers = true,
        .trunks = kPlainTrunk,
        .hf_names = kHfDeepseek,
        .gguf_names = {},
        .ignored = {},
    },
});

}  // namespace

std::span<const Family> Families() { return kFamilies; }

bool IsGuessingLayer(const Family& family, std::int64_t num_layers, string_view tensor) {
  return family.guessing_layers && std::ranges::any_of(family.trunks, [&](const string_view trunk) {
           return tensor.starts_with(fmt::format("{}layers.{}.", trunk, num_layers));
         });
}

const Family* FindHfFamily(string_view architecture, string_view model_type) {
  for (const Family& family : kFamilies) {
    for (const string_view known : family.architectures) {
      if (known == architecture) {
        return &family;
      }
    }
    if (architecture.empty() && family.model_type == model_type) {
      return &family;
    }
  }
  return nullptr;
}

const Family* FindGgufFamily(string_view architecture) {
  for (const Family& family : kFamilies) {
    if (!architecture.empty() && family.gguf == architecture) {
      return &family;
    }
  }
  return nullptr;
}

std::string HfFamilyNames() {
  std::string names;
  for (const Family& family : kFamilies) {
    for (const string_view known : family.architectures) {
      names += (names.empty() ? "" : ", ") + std::string(known);
    }
  }
  return names;
}

std::string GgufFamilyNames() {
  std::string names;
  for (const Family& family : kFamilies) {
    if (!family.gguf.empty()) {
      names += (names.empty() ? "" : ", ") + std::string(family.gguf);
    }
  }
  return names;
}

}  // namespace inferd::store
