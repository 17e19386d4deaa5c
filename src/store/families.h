// SPDX-License-Identifier: Apache-2.0
// Model families as table rows: how config keys that differ from family to family are to be read,
// and under which names files keep the weights. Adding a family is adding a row (families.cc), not
// a class.
#pragma once

#include "spec/model_spec.h"
#include "store/weights.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace inferd::store {

/// Which part of the named tensor a slot is.
enum class Part : std::uint8_t {
  kWhole,
  kFusedQ,  // rows of q in [q; k; v]
  kFusedK,
  kFusedV,
  kFirstHalf,  // rows of gate in [gate; up]
  kSecondHalf,
  kExpert,           // expert e of a stack [experts, rows, cols]
  kExpertFirstHalf,  // gate of expert e of a stack [experts, gate; up, cols]
  kExpertSecondHalf,
};

/// A name under which a slot may be stored. "{M}": what the trunk's names begin with; "{L}": layer;
/// "{E}": expert.
struct NamePattern {
  Slot slot;
  std::string_view name;
  Part part = Part::kWhole;
};

/// Which layers have a sliding window when the config does not list them.
enum class WindowRule : std::uint8_t {
  kNone,
  kAll,          // every layer
  kFromLayer,    // layers from max_window_layers on (Qwen 2, 3)
  kEvenLayers,   // even layers below max_window_layers (Qwen2-MoE)
  kAlternating,  // of `pattern` layers in a row the last one sees everything (Gemma)
};

enum class MoeRule : std::uint8_t {
  kDense,
  kEveryLayer,  // Mixtral
  kSparseStep,  // decoder_sparse_step and mlp_only_layers (Qwen)
  kAfterDense,  // first_k_dense_replace, and experts in groups (DeepSeek)
};

/// Values of config keys that a file may leave out; 0: the key must be there.
struct HfDefaults {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  // 0: as many as heads
  std::int64_t head_dim = 0;      // 0: hidden_size / heads
  std::int64_t max_position = 2048;
  double norm_eps = 1e-6;
  double rope_theta = 10'000;
  std::int64_t window = 0;
  double query_pre_attn_scalar = 0;  // 0: the family has no such key
  bool tied_head = false;
  bool use_sliding_window = true;
};

struct Family {
  std::string_view name;
  std::span<const std::string_view> architectures;  // in config.json
  std::string_view model_type;                      // in config.json, when architectures is absent
  std::string_view gguf;                            // general.architecture
  HfDefaults defaults;

  // What every model of the family has.
  bool qkv_bias = false;
  bool qk_norm = false;
  bool sandwich_norm = false;
  bool norm_plus_one = false;     // in safetensors; GGUF files have the 1 added already
  bool scaled_embedding = false;  // by sqrt(hidden_size)
  spec::Activation activation = spec::Activation::kSilu;
  bool gguf_interleaved = false;  // rope pairs in GGUF files
  double local_rope_theta = 0;    // layers with a window have a rope of their own
  WindowRule window = WindowRule::kNone;
  std::int64_t pattern = 0;
  MoeRule moe = MoeRule::kDense;
  bool renormalize = true;  // GGUF; in config.json norm_topk_prob, if the family has it, decides
  bool has_norm_topk_prob = false;
  bool shared_expert = false;  // with a sigmoid gate
  bool latent = false;         // MLA
  bool choice_bias = false;    // noaux_tc, which topk_method need not say
  /// Further layers behind the last one are left alone; only the next one may be there.
  bool guessing_layers = false;
  /// GGUF models with this many layers scale attention by hidden_size / heads instead of head_dim
  /// (Gemma 27B).
  std::int64_t gguf_wide_scale_layers = 0;

  std::span<const std::string_view> trunks;  // candidates for "{M}"
  std::span<const NamePattern> hf_names;
  std::span<const NamePattern> gguf_names;
  std::span<const std::string_view>
      ignored;  // tensors that begin like this belong to parts that are not run
};

std::span<const Family> Families();
/// Whether a tensor of safetensors files belongs to the layer behind the last of num_layers, which
/// guesses further tokens and is not run.
bool IsGuessingLayer(const Family& family, std::int64_t num_layers, std::string_view tensor);
/// Null if there is none.
const Family* FindHfFamily(std::string_view architecture, std::string_view model_type);
const Family* FindGgufFamily(std::string_view architecture);
/// "LlamaForCausalLM, MistralForCausalLM, ..." / "llama, qwen2, ...", for messages.
std::string HfFamilyNames();
std::string GgufFamilyNames();

}  // namespace inferd::store
