// SPDX-License-Identifier: Apache-2.0
// ModelSpec: what a decoder is made of, as plain data. A model family is a table that fills this
// (store/families.cc); nothing below knows a family by name.
#pragma once

#include "base/dtype.h"
#include "inferd/result.h"

#include <cstdint>
#include <string>
#include <vector>

namespace inferd::spec {

enum class RopeKind : std::uint8_t {
  kNone,
  kDefault,
  kLinear,
  kDynamic,
  kLlama3,
  kYarn,
  kLongRope
};

/// Rotary embedding of one kind of layer. `factors` (longrope, or GGUF's rope_freqs) divide the
/// base frequencies.
struct RopeSpec {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000;
  std::int64_t rotary_dim = 0;  // values of a head that rotate; head_dim unless partial
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  std::int64_t original_max_position = 0;
  double beta_fast = 32, beta_slow = 1;   // yarn
  double attention_factor = 0;            // yarn, longrope; 0: computed from factor
  double mscale = 0, mscale_all_dim = 0;  // yarn as DeepSeek uses it; 0: absent
  bool truncate = true;                   // yarn: round the correction range to whole dimensions
  std::vector<float> short_factors, long_factors;  // longrope, [rotary_dim / 2]
  std::vector<float> freq_factors;  // GGUF rope_freqs.weight, [rotary_dim / 2]; empty: none
};

enum class Activation : std::uint8_t { kSilu, kGeluTanh, kGelu };
enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid };

struct MoeSpec {
  std::int64_t num_experts = 0;  // 0: dense model
  std::int64_t top_k = 0;
  std::int64_t expert_intermediate_size = 0;
  std::int64_t shared_intermediate_size = 0;  // 0: no shared expert
  bool shared_gate = false;                   // sigmoid gate on the shared expert (Qwen2-MoE)
  RouterScore score = RouterScore::kSoftmax;
  bool softmax_before_topk = true;  // else softmax over the chosen ones (same as renormalising)
  bool renormalize = true;          // weights of the chosen experts sum to 1
  double routed_scale = 1;
  bool choice_bias = false;  // a stored bias per expert, for the choice only (DeepSeek-V3)
  /// Experts in `groups` runs of equally many, of which a token sees only the top_groups best: by
  /// their best expert, or by the sum of their group_best best ones.
  std::int64_t groups = 1, top_groups = 1, group_best = 1;
};

/// Latent attention (MLA, arXiv 2405.04434): what is kept of a token is one vector that all heads
/// share, a latent of kv_rank values and a rotated key of rope_dim values. Each head makes its K
/// and V from the latent.
struct LatentSpec {
  std::int64_t kv_rank = 0;  // 0: ordinary attention
  std::int64_t q_rank = 0;   // queries come by a latent of their own; 0: straight from the input
  std::int64_t nope_dim = 0, rope_dim = 0;  // of a head's K: made from the latent, and shared
  std::int64_t value_dim = 0;               // of a head's V

  bool used() const { return kv_rank > 0; }
  /// Values kept of a token in a layer.
  std::int64_t width() const { return kv_rank + rope_dim; }
};

/// What differs from layer to layer.
struct LayerSpec {
  std::int64_t window = 0;  // tokens a row may see, itself included; 0: all
  bool moe = false;
  int rope = 0;  // index into ModelSpec::ropes
};

struct ModelSpec {
  std::string name;          // as the user gave it
  std::string architecture;  // "LlamaForCausalLM" or GGUF "llama"; for messages and logs only
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;       // with a latent 1
  std::int64_t head_dim = 0;           // of Q and K; with a latent nope_dim + rope_dim
  std::int64_t intermediate_size = 0;  // dense FFN
  std::int64_t max_position = 0;       // trained context length
  double norm_eps = 1e-5;
  bool norm_plus_one =
      false;  // stored weights are w, the norm multiplies by 1 + w (Gemma in HF files)
  bool sandwich_norm = false;  // norms after attention and FFN, before the residual (Gemma 2, 3)
  bool qk_norm = false;        // RMS norm per head on Q and K before rope
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool tied_head = false;
  Activation activation = Activation::kSilu;
  double embedding_scale = 1;
  double attention_scale = 0;  // 0: 1 / sqrt(head_dim)
  double attention_softcap = 0, final_softcap = 0;
  bool attention_sinks = false;
  bool rope_interleaved = false;  // pairs (2i, 2i + 1): GGUF files of the llama family
  LatentSpec latent;
  MoeSpec moe;
  std::vector<RopeSpec> ropes;    // at least one
  std::vector<LayerSpec> layers;  // [num_layers]
  /// Ids that end a text: the union over every file that names one.
  std::vector<std::int32_t> eos_ids;
  std::int32_t bos_id = -1;

  /// Stored type that most weights of the layers have; decides the default KV type (F32 weights:
  /// F32 KV; else F16).
  DType weight_dtype = DType::kBF16;

  /// Values of a head that go into the output projection.
  std::int64_t value_dim() const { return latent.used() ? latent.value_dim : head_dim; }
  /// Values of K and V kept of a token in a layer, for `kv_heads` KV heads.
  std::int64_t KvValues(std::int64_t kv_heads) const {
    return latent.used() ? latent.width() : 2 * kv_heads * head_dim;
  }
};

/// Refuses a spec that no decoder could run (zero sizes, heads not a multiple of KV heads, layers
/// missing, ...).
Result<> Validate(const ModelSpec& model);

}  // namespace inferd::spec
