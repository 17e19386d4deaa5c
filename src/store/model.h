// SPDX-License-Identifier: Apache-2.0
// A model as found on disk: what it is (ModelSpec), where its weights are, its text side as files,
// and its defaults.
#pragma once

#include "inferd/result.h"
#include "spec/model_spec.h"
#include "spec/parallel.h"
#include "store/tensor_source.h"
#include "store/weights.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inferd::store {

/// `tokenizer.ggml.*` of a GGUF file. Absent keys are empty vectors and nullopt. Same fields as
/// text::Vocabulary.
struct GgufVocabulary {
  std::string model;  // "gpt2", "llama", ...
  std::string pre;
  std::string architecture;
  std::vector<std::string> tokens;  // [vocab]
  std::vector<float> scores;        // [vocab] or empty
  std::vector<std::int32_t> types;  // [vocab] or empty
  std::vector<std::string> merges;
  std::optional<std::int32_t> bos_id, eos_id, eot_id, eom_id, unk_id, pad_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

/// What the text room needs to build tokenizer and chat template. Either `tokenizer_json` or
/// `vocabulary` is there.
struct TokenizerFiles {
  std::string tokenizer_json;         // text of the file; empty: none
  std::string tokenizer_config_json;  // text of the file; empty: none
  std::optional<GgufVocabulary> vocabulary;
  /// chat_template.jinja, chat_template.json or GGUF's tokenizer.chat_template. Wins over the one
  /// inside tokenizer_config_json.
  std::optional<std::string> chat_template;
  std::vector<std::pair<std::string, std::string>>
      named_templates;  // further ones by name ("tool_use")
};

/// What the model's makers suggest (generation_config.json, GGUF general.sampling.*). A request
/// beats these, these beat inferd's own.
struct GenerationDefaults {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<std::int32_t> top_k;
  std::optional<double> repetition_penalty;
};

struct Model {
  std::string path;  // as opened
  spec::ModelSpec spec;
  TensorSource tensors;
  Weights weights;  // points into `tensors`; stays valid when the Model is moved
  spec::CutGranularity cut;
  bool fp8_kv = false;  // the files say that the KV cache is meant to be FP8
  TokenizerFiles tokenizer;
  GenerationDefaults generation;
};

/// Bytes of the tensors that are loaded, as the files have them, or as --quantization rounds them.
std::int64_t LoadedBytes(const Model& model);

/// Opens a GGUF file (any part of a split one), or a folder with a GGUF file or with config.json
/// and safetensors. Maps the files, reads headers only. Refuses what is malformed, incomplete or
/// unknown, naming file, tensor or key. `quantization` and `keep_fp8`: see
/// store/load_quantisation.h.
Result<Model> OpenModel(const std::string& path,
                        std::string_view quantization = "",
                        bool keep_fp8 = false);

}  // namespace inferd::store
