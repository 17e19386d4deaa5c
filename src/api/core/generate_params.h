// SPDX-License-Identifier: Apache-2.0
// What all generating endpoints have in common: sampling, stops, streaming and the parameters this
// server refuses by name.
#pragma once

#include "api/core/caller.h"
#include "api/core/context.h"
#include "api/core/fields.h"
#include "api/core/generation.h"
#include "inferd/result.h"
#include "leader/inference_service.h"
#include "text/grammar.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

/// What a client asked of a generation apart from its prompt, each value within its limit and the
/// model's defaults filled in. Every protocol fills this in from its own words.
struct GenerateParams {
  spec::SamplingParams sampling;
  std::optional<std::int64_t> max_tokens;             // must fit; absent: as many as fit
  std::int64_t max_tokens_bound = limits::kInt32Max;  // without max_tokens: this many at most
  std::int32_t min_tokens = 0;
  std::int32_t num_speculative_tokens = -1;  // -1: the server's default
  std::int32_t n = 1;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  /// What the reply must follow; null: nothing.
  std::shared_ptr<const text::Grammar> grammar;
  bool ignore_eos = false;    // without a grammar
  bool include_stop = false;  // include_stop_str_in_output
  bool skip_special = true;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // with include_usage only
  ReplyReport report;
  Caller caller;
  std::string cache_salt;
};

/// The model's defaults, and a random seed.
GenerateParams DefaultParams(const ServedModel& model);

/// OpenAI's and vLLM's names. Parameters that would change the answer and are not supported are
/// refused by name. max_tokens, echo and logprobs are the endpoint's.
Result<GenerateParams> ParseParams(const ServerContext& context, const Fields& fields);

/// A `stop` field (a string or a list of strings), checked.
Result<std::vector<std::string>> ParseStops(const Fields& fields, std::string_view name);

/// Fills what does not depend on the prompt: `spec` but for requests, format and echoes;
/// `prototype` but for prompt and max_tokens.
Result<> ApplyParams(const ServerContext& context,
                     const GenerateParams& params,
                     GenerationSpec* spec,
                     leader::GenerateRequest* prototype);

/// 404 for a model this server does not have, 403 for one that the caller's key is not for.
Result<> CheckModel(const ServerContext& context, const Fields& fields);

/// The second half of CheckModel, for endpoints that find the model's name elsewhere.
Result<> MayUseModel(const ServerContext& context, std::string_view asked, Fault* fault);

/// Sets tokens of the caller's key aside, or says when there will be enough. AddPrompts does it for
/// generations.
Result<> ReserveTokens(const ServerContext& context, std::int64_t tokens, Fault* fault);

/// Adds a request for each prompt to `spec`, with max_tokens set: `asked`, else what fits
/// (`fallback` at most). Refuses what does not fit into the model's context, with the numbers, and
/// what the caller's key has not left; `param` names the prompt's field.
Result<> AddPrompts(const ServerContext& context,
                    std::vector<std::vector<std::int32_t>> prompts,
                    const leader::GenerateRequest& prototype,
                    std::optional<std::int64_t> asked,
                    std::int64_t fallback,
                    std::string_view param,
                    GenerationSpec* spec,
                    Fault* fault);

/// Tokenises a prompt that will be run. A text that cannot fit into the context however it is cut
/// is refused before that work is done, unless it is cut to its last `keep` tokens; `param` names
/// its field.
Result<std::vector<std::int32_t>> EncodePrompt(const ServerContext& context,
                                               std::string_view text,
                                               bool add_special,
                                               std::string_view param,
                                               Fault* fault,
                                               std::optional<std::int64_t> keep = {});

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
