// SPDX-License-Identifier: Apache-2.0
// The text side and the generation defaults of a Hugging Face model folder.
#pragma once

#include "inferd/result.h"
#include "store/model.h"

#include <cstdint>
#include <string>
#include <vector>

namespace inferd::store {

/// Reads the files that are there. `eos_ids` receives the id of the tokenizer's eos_token.
Result<TokenizerFiles> ReadHfTokenizer(const std::string& folder,
                                       std::vector<std::int32_t>* eos_ids);
/// generation_config.json, if there; its eos_token_id goes to `eos_ids`.
Result<GenerationDefaults> ReadHfGeneration(const std::string& folder,
                                            std::vector<std::int32_t>* eos_ids);

}  // namespace inferd::store
