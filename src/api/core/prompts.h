// SPDX-License-Identifier: Apache-2.0
// The prompt (or input) field of requests that take plain text: a string, a list of strings, token
// ids, or a list of those.
#pragma once

#include "api/core/context.h"
#include "api/core/fields.h"
#include "inferd/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

struct Prompts {
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<std::string> texts;  // for echo
};

/// Parses and tokenises the field `name`. Text gets BOS once if the model wants one; ids are taken
/// as they are, each checked against the vocabulary. Cut as truncate_prompt_tokens says, which may
/// leave room for `reserved` tokens of output.
Result<Prompts> ParsePrompts(const ServerContext& context,
                             const Fields& fields,
                             std::string_view name,
                             std::int64_t reserved);

}  // namespace inferd::api
