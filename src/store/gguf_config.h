// SPDX-License-Identifier: Apache-2.0
// Metadata of a GGUF file to ModelSpec and vocabulary.
#pragma once

#include "inferd/result.h"
#include "spec/model_spec.h"
#include "store/families.h"
#include "store/gguf_file.h"
#include "store/model.h"
#include "store/tensor_source.h"

namespace inferd::store {

struct GgufModelConfig {
  const Family* family = nullptr;
  spec::ModelSpec spec;
};

/// `file` is the first part. Refuses unknown architectures and rope types by name. The tensors
/// decide what the keys do not say (biases, tied head, which layers are MoE). spec.weight_dtype and
/// spec.name are left for the caller.
Result<GgufModelConfig> ParseGgufConfig(const GgufFile& file, const TensorSource& tensors);

/// Vocabulary, chat templates and, in `eos_ids`, the ids that end a text.
Result<TokenizerFiles> ReadGgufTokenizer(const GgufFile& file, std::vector<std::int32_t>* eos_ids);
Result<GenerationDefaults> ReadGgufGeneration(const GgufFile& file);

}  // namespace inferd::store
