// SPDX-License-Identifier: Apache-2.0
// Published sizes of real models, written out by hand, for tests of plans and ledgers.
#pragma once

#include "spec/model_spec.h"

#include <cstdint>
#include <string>

namespace inferd::spec {

struct Sizes {
  std::int64_t vocab, hidden, layers, heads, kv_heads, head_dim, ffn;
};

inline ModelSpec MakeSpec(const std::string& name, const Sizes& sizes) {
  ModelSpec model;
  model.name = name;
  model.vocab_size = sizes.vocab;
  model.hidden_size = sizes.hidden;
  model.num_layers = sizes.layers;
  model.num_heads = sizes.heads;
  model.num_kv_heads = sizes.kv_heads;
  model.head_dim = sizes.head_dim;
  model.intermediate_size = sizes.ffn;
  model.max_position = 4096;
  model.ropes.resize(1);
  model.ropes[0].rotary_dim = sizes.head_dim;
  model.layers.resize(static_cast<std::size_t>(sizes.layers));
  return model;
}

inline ModelSpec MakeMoeSpec(const std::string& name,
                             const Sizes& sizes,
                             std::int64_t experts,
                             std::int64_t top_k,
                             std::int64_t expert_ffn) {
  ModelSpec model = MakeSpec(name, sizes);
  model.moe.num_experts = experts;
  model.moe.top_k = top_k;
  model.moe.expert_intermediate_size = expert_ffn;
  for (LayerSpec& layer : model.layers) {
    layer.moe = true;
  }
  return model;
}

inline ModelSpec Llama2_70B() {
  return MakeSpec("llama-2-70b", {32'000, 8192, 80, 64, 8, 128, 28'672});
}
inline ModelSpec Llama3_8B() {
  return MakeSpec("llama-3-8b", {128'256, 4096, 32, 32, 8, 128, 14'336});
}
inline ModelSpec Llama3_70B() {
  return MakeSpec("llama-3-70b", {128'256, 8192, 80, 64, 8, 128, 28'672});
}
inline ModelSpec Qwen2_72B() {
  ModelSpec model = MakeSpec("qwen2-72b", {152'064, 8192, 80, 64, 8, 128, 29'568});
  model.qkv_bias = true;
  return model;
}
inline ModelSpec Qwen25_05B() {
  ModelSpec model = MakeSpec("qwen2.5-0.5b", {151'936, 896, 24, 14, 2, 64, 4864});
  model.qkv_bias = true;
  model.tied_head = true;
  return model;
}
inline ModelSpec Mixtral_8x7B() {
  return MakeMoeSpec("mixtral-8x7b", {32'000, 4096, 32, 32, 8, 128, 14'336}, 8, 2, 14'336);
}
inline ModelSpec Qwen3_30B_A3B() {
  ModelSpec model =
      MakeMoeSpec("qwen3-30b-a3b", {151'936, 2048, 48, 32, 4, 128, 6144}, 128, 8, 768);
  model.qk_norm = true;
  return model;
}

inline ModelSpec DeepseekV3() {
  ModelSpec model =
      MakeMoeSpec("deepseek-v3", {129'280, 7168, 61, 128, 1, 192, 18'432}, 256, 8, 2048);
  model.latent = {
      .kv_rank = 512, .q_rank = 1536, .nope_dim = 128, .rope_dim = 64, .value_dim = 128};
  model.ropes[0].rotary_dim = 64;
  model.moe.shared_intermediate_size = 2048;
  model.moe.choice_bias = true;
  model.moe.groups = 8;
  model.moe.top_groups = 4;
  model.moe.group_best = 2;
  for (std::size_t layer = 0; layer < 3; ++layer) {
    model.layers[layer].moe = false;
  }
  return model;
}

}  // namespace inferd::spec
