// SPDX-License-Identifier: Apache-2.0
// --speculative-config: JSON with vLLM's names.
#pragma once

#include "engine/prompt_lookup.h"
#include "inferd/result.h"

#include <cstdint>
#include <string>

namespace inferd::app {

struct Speculation {
  std::int32_t num_tokens = 0;  // guessed ahead at most; 0: none
  engine::PromptLookupOptions prompt_lookup;
};

/// Of an empty text: no guessing. kInvalidArgument names the key, the value and what is possible;
/// methods that need a second model are refused by name.
Result<Speculation> ParseSpeculativeConfig(const std::string& text);

}  // namespace inferd::app
