// SPDX-License-Identifier: Apache-2.0
// truncate_prompt_tokens: of a prompt that is too long its last tokens are kept.
#pragma once

#include "api/core/context.h"
#include "api/core/fields.h"
#include "inferd/result.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace inferd::api {

/// How many of a prompt's last tokens are kept; absent: all. -1 asks for what the context holds
/// beside `reserved` tokens of output.
Result<std::optional<std::int64_t>> ParsePromptCut(const ServerContext& context,
                                                   const Fields& fields,
                                                   std::int64_t reserved);

/// Keeps the last `keep` ids, a leading `bos` (-1: none) among them.
void CutPrompt(std::int64_t keep, std::int32_t bos, std::vector<std::int32_t>* ids);

}  // namespace inferd::api
