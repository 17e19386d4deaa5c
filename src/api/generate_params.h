// SPDX-License-Identifier: Apache-2.0
// What chat and completions have in common: sampling, stops, streaming and the parameters this
// server refuses by name.
#pragma once

#include "api/endpoint.h"
#include "api/fields.h"
#include "api/generation.h"
#include "inferd/result.h"
#include "leader/inference_service.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

/// Fills what does not depend on the prompt: `spec` but for requests, format and echoes;
/// `prototype` but for prompt, max_tokens and logprobs.
Result<> ParseCommon(const ServerContext& context,
                     const Fields& fields,
                     GenerationSpec* spec,
                     leader::GenerateRequest* prototype);

/// 404 for a model this server does not have.
Result<> CheckModel(const ServerContext& context, const Fields& fields);

/// Adds a request for each prompt to `spec`, with max_tokens set: `asked`, else what fits
/// (`fallback` at most). Refuses what does not fit into the model's context, with the numbers;
/// `param` names the prompt's field.
Result<> AddPrompts(const ServerContext& context,
                    std::vector<std::vector<std::int32_t>> prompts,
                    const leader::GenerateRequest& prototype,
                    std::optional<std::int64_t> asked,
                    std::int64_t fallback,
                    std::string_view param,
                    GenerationSpec* spec,
                    Fault* fault);

/// Tokenises a prompt that will be run. A text that cannot fit into the context however it is cut
/// is refused before that work is done; `param` names its field.
Result<std::vector<std::int32_t>> EncodePrompt(const ServerContext& context,
                                               std::string_view text,
                                               bool add_special,
                                               std::string_view param,
                                               Fault* fault);

/// Ids of a JSON array, each checked against the vocabulary; at most `max_count` of them.
Result<std::vector<std::int32_t>> ParseIds(const nlohmann::ordered_json& value,
                                           const std::string& path,
                                           std::int64_t vocab_size,
                                           std::size_t max_count,
                                           Fault* fault);

/// "chatcmpl-<32 hex>"
std::string NewId(std::string_view prefix);
/// Seconds since 1970.
std::int64_t UnixNow();

}  // namespace inferd::api
