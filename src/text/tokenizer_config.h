// SPDX-License-Identifier: Apache-2.0
// What tokenizer_config.json says about a Hugging Face model's text: names of the special tokens
// and chat templates.
#pragma once

#include "inferd/result.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inferd::text {

struct TokenizerConfig {
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> pad_token;
  std::optional<std::string> unk_token;
  /// The template named "default", or the only one.
  std::optional<std::string> chat_template;
  /// Further templates by name (for example "tool_use", "rag").
  std::vector<std::pair<std::string, std::string>> named_templates;
};

/// Parses the text of a tokenizer_config.json. InvalidArgument if it is not a JSON object; fields
/// of unexpected kinds are errors that name the field.
Result<TokenizerConfig> ParseTokenizerConfig(std::string_view tokenizer_config_json);

}  // namespace inferd::text
