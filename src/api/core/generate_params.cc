// SPDX-License-Identifier: Apache-2.0
#include "api/core/generate_params.h"

#include "api/core/caller.h"
#include "api/core/constraint.h"
#include "api/core/prompt_cut.h"
#include "api/core/sampler_params.h"
#include "api/core/token_params.h"
#include "base/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

std::mt19937_64& Random() {
  thread_local std::mt19937_64 engine = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return engine;
}

/// A parameter of clients or other servers that would change the answer and is not supported;
/// `harmless` values are those that ask for nothing.
struct Refused {
  std::string_view name;
  bool (*harmless)(const Json& value);
};

bool Never(const Json& /*value*/) { return false; }
bool False(const Json& value) { return value.is_boolean() && !value.get<bool>(); }
bool Empty(const Json& value) {
  return (value.is_array() || value.is_object() || value.is_string()) && value.empty();
}
bool EmptyString(const Json& value) {
  return value.is_string() && value.get_ref<const std::string&>().empty();
}
bool Zero(const Json& value) { return value.is_number() && value.get<double>() == 0; }
bool One(const Json& value) { return value.is_number() && value.get<double>() == 1; }
bool NoTool(const Json& value) { return value == "none" || value == "auto"; }
bool TextOnly(const Json& value) { return value == Json::array({"text"}); }

constexpr Refused kRefused[] = {
    {"functions", Empty},
    {"function_call", NoTool},
    {"suffix", EmptyString},
    {"best_of", One},
    {"use_beam_search", False},
    {"length_penalty", One},
    {"prompt_embeds", Never},
    {"logits_processors", Empty},
    {"modalities", TextOnly},
    {"audio", Never},
    {"prediction", Never},
    {"web_search_options", Never},
    {"store", False},
    {"mm_processor_kwargs", Empty},
    {"images", Empty},
    {"mirostat", Zero},
    {"lora_request", Never},
    {"verbosity", Never},
    {"kv_transfer_params", Never},
};

Result<> RefuseUnsupported(const Fields& fields) {
  for (const Refused& refused : kRefused) {
    const Json* const value = fields.Find(refused.name);
    if (value != nullptr && !refused.harmless(*value)) {
      return NotSupportedYet(fields.fault(), std::string(refused.name));
    }
  }
  return {};
}

Result<> ParseSampling(const Fields& fields, spec::SamplingParams* sampling) {
  INFERD_ASSIGN(const auto temperature, fields.Real(limits::kTemperature));
  INFERD_ASSIGN(const auto top_p, fields.Real(limits::kTopP));
  INFERD_ASSIGN(const auto min_p, fields.Real(limits::kMinP));
  INFERD_ASSIGN(const auto top_k, fields.Int(limits::kTopK));
  INFERD_ASSIGN(const auto repetition, fields.Real(limits::kRepetitionPenalty));
  INFERD_ASSIGN(const auto presence, fields.Real(limits::kPresencePenalty));
  INFERD_ASSIGN(const auto frequency, fields.Real(limits::kFrequencyPenalty));
  INFERD_ASSIGN(const auto seed, fields.Int(limits::kSeed));
  sampling->temperature = temperature.value_or(sampling->temperature);
  sampling->top_p = top_p.value_or(sampling->top_p);
  sampling->min_p = min_p.value_or(sampling->min_p);
  sampling->top_k = top_k ? static_cast<std::int32_t>(*top_k < 0 ? 0 : *top_k) : sampling->top_k;
  sampling->repetition_penalty = repetition.value_or(sampling->repetition_penalty);
  sampling->presence_penalty = presence.value_or(0.0);
  sampling->frequency_penalty = frequency.value_or(0.0);
  sampling->seed = seed ? static_cast<std::uint64_t>(*seed) : sampling->seed;
  return {};
}

Result<> ParseStreaming(const Fields& fields, GenerateParams* params) {
  INFERD_ASSIGN(params->stream, fields.BoolOr("stream", false));
  const Json* const options = fields.Find("stream_options");
  if (options == nullptr) {
    return {};
  }
  if (!params->stream) {
    return FieldError(
        fields.fault(), "stream_options", "stream_options is for requests with stream true only");
  }
  if (!options->is_object()) {
    return FieldError(fields.fault(),
                      "stream_options",
                      "stream_options must be an object, not {}",
                      options->type_name());
  }
  const Fields inner(*options, fields.fault(), "stream_options.");
  INFERD_ASSIGN(params->include_usage, inner.BoolOr("include_usage", false));
  INFERD_ASSIGN(const bool continuous, inner.BoolOr("continuous_usage_stats", false));
  params->continuous_usage = continuous && params->include_usage;  // as vLLM does
  return {};
}

/// What the answer tells of tokens and of time.
Result<> ParseReport(const Fields& fields, GenerateParams* params) {
  INFERD_ASSIGN(const auto scores, fields.Int(limits::kPromptLogprobs));
  if (scores && params->stream) {
    return FieldError(
        fields.fault(), "prompt_logprobs", "prompt_logprobs is for requests without stream only");
  }
  params->sampling.prompt_logprobs = static_cast<std::int32_t>(scores.value_or(-1));
  INFERD_ASSIGN(params->report.token_ids, fields.BoolOr("return_token_ids", false));
  INFERD_ASSIGN(params->report.tokens_as_ids, fields.BoolOr("return_tokens_as_token_ids", false));
  INFERD_ASSIGN(params->report.timings, fields.BoolOr("timings_per_token", false));
  return {};
}

}  // namespace

Result<> CheckModel(const ServerContext& context, const Fields& fields) {
  INFERD_ASSIGN(const auto name, fields.String("model"));
  if (name && !name->empty() && !context.model.Answers(*name) &&
      !(context.background && context.model.HasAnswered(*name))) {
    *fields.fault() = {"model", "model_not_found"};
    return NotFound("The model `{}` does not exist here; this server has `{}`",
                    name->substr(0, 100),
                    context.model.name());
  }
  if (name && !name->empty()) {
    return MayUseModel(context, *name, fields.fault());
  }
  // Left out, it is meant by whichever name the key may use.
  for (const std::string& each : context.model.names->All()) {
    if (Fault ignored; MayUseModel(context, each, &ignored).ok()) {
      return {};
    }
  }
  return MayUseModel(context, context.model.name(), fields.fault());
}

Result<> MayUseModel(const ServerContext& context, std::string_view asked, Fault* fault) {
  if (context.admission == nullptr ||
      context.admission->UseModel(context.model.WithoutVersion(asked)).ok()) {
    return {};
  }
  auto allowed = context.admission->UseModel(asked);
  if (!allowed.ok()) {
    *fault = {"model", "model_not_allowed"};
  }
  return allowed;
}

Result<> ReserveTokens(const ServerContext& context, std::int64_t tokens, Fault* fault) {
  if (context.admission == nullptr) {
    return {};
  }
  tenant::Refusal refusal;
  auto reserved = context.admission->Reserve(tokens, &refusal);
  if (!reserved.ok()) {
    fault->code = "rate_limit_exceeded";
    fault->reason = "quota";
    fault->retry_after_ms = refusal.retry_after_ms;
  }
  return reserved;
}

Result<std::vector<std::string>> ParseStops(const Fields& fields, std::string_view name) {
  const Json* const stop = fields.Find(name);
  std::vector<std::string> texts;
  if (stop == nullptr) {
    return texts;
  }
  if (!stop->is_string() && !stop->is_array()) {
    return FieldError(fields.fault(),
                      fields.Path(name),
                      "{} must be a string or a list of strings, not {}",
                      name,
                      stop->type_name());
  }
  const Json list = stop->is_string() ? Json::array({*stop}) : *stop;
  if (list.size() > limits::kStopStrings) {
    return FieldError(fields.fault(),
                      fields.Path(name),
                      "{} has {} strings; at most {} are allowed",
                      name,
                      list.size(),
                      limits::kStopStrings);
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string path =
        stop->is_string() ? fields.Path(name) : fmt::format("{}[{}]", fields.Path(name), i);
    if (!list[i].is_string()) {
      return FieldError(
          fields.fault(), path, "{} must be a string, not {}", path, list[i].type_name());
    }
    auto text = list[i].get<std::string>();
    if (text.empty() || text.size() > limits::kStopBytes) {
      return FieldError(
          fields.fault(), path, "{} must have 1 to {} bytes", path, limits::kStopBytes);
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

GenerateParams DefaultParams(const ServedModel& model) {
  GenerateParams params;
  const SamplingDefaults& defaults = model.defaults;
  params.sampling.temperature = defaults.temperature.value_or(1.0);
  params.sampling.top_p = defaults.top_p.value_or(1.0);
  params.sampling.min_p = defaults.min_p.value_or(0.0);
  params.sampling.top_k = std::max(defaults.top_k.value_or(0), 0);
  params.sampling.repetition_penalty = defaults.repetition_penalty.value_or(1.0);
  params.sampling.seed = Random()();
  return params;
}

Result<GenerateParams> ParseParams(const ServerContext& context, const Fields& fields) {
  INFERD_TRY(RefuseUnsupported(fields));
  GenerateParams params = DefaultParams(context.model);
  INFERD_TRY(ParseSampling(fields, &params.sampling));
  INFERD_TRY(ParseSamplerParams(
      *context.model.tokenizer, context.model.vocab_size, fields, &params.sampling));
  INFERD_TRY(ParseTokenParams(context, fields, &params.sampling));
  INFERD_ASSIGN(params.grammar, ParseGrammar(context, fields));
  INFERD_ASSIGN(params.stop, ParseStops(fields, "stop"));
  INFERD_TRY(ParseStreaming(fields, &params));
  INFERD_TRY(ParseReport(fields, &params));
  INFERD_ASSIGN(const auto n, fields.Int(limits::kN));
  params.n = static_cast<std::int32_t>(n.value_or(1));
  INFERD_ASSIGN(const auto min_tokens, fields.Int(limits::kMinTokens));
  params.min_tokens = static_cast<std::int32_t>(min_tokens.value_or(0));
  INFERD_ASSIGN(const auto speculative, fields.Int(limits::kSpeculativeTokens));
  params.num_speculative_tokens = static_cast<std::int32_t>(speculative.value_or(-1));
  INFERD_ASSIGN(params.ignore_eos, fields.BoolOr("ignore_eos", false));
  INFERD_ASSIGN(params.include_stop, fields.BoolOr("include_stop_str_in_output", false));
  INFERD_ASSIGN(params.skip_special, fields.BoolOr("skip_special_tokens", true));
  // No effect: no tokenizer here puts spaces between tokens.
  INFERD_TRY(fields.Bool("spaces_between_special_tokens"));
  INFERD_ASSIGN(params.caller, ParseCaller(fields));
  INFERD_ASSIGN(const auto salt, fields.String("cache_salt"));
  if (salt && (salt->empty() || salt->size() > limits::kSaltBytes)) {
    return FieldError(
        fields.fault(), "cache_salt", "cache_salt must have 1 to {} bytes", limits::kSaltBytes);
  }
  params.cache_salt = salt.value_or("");
  if (const Json* const ids = fields.Find("stop_token_ids")) {
    INFERD_ASSIGN(params.stop_token_ids,
                  ParseIds(*ids,
                           "stop_token_ids",
                           context.model.vocab_size,
                           limits::kStopTokenIds,
                           fields.fault()));
  }
  return params;
}

Result<> ApplyParams(const ServerContext& context,
                     const GenerateParams& params,
                     GenerationSpec* spec,
                     leader::GenerateRequest* prototype) {
  spec->stop_strings = params.stop;
  if (!params.stop.empty()) {
    INFERD_ASSIGN(spec->stops, text::StopStrings::Make(params.stop));
  }
  spec->stop_token_ids = params.stop_token_ids;
  spec->min_tokens = params.min_tokens;
  spec->n = params.n;
  spec->stream = params.stream;
  spec->include_usage = params.include_usage || context.model.force_include_usage;
  spec->include_stop = params.include_stop;
  spec->skip_special = params.skip_special;
  spec->logprobs = params.sampling.logprobs >= 0;
  spec->report = params.report;
  spec->continuous_usage = params.continuous_usage;
  spec->prompt_top = params.sampling.prompt_logprobs;
  spec->tokenizer = context.model.tokenizer;
  spec->arrived_ns = context.arrived_ns;
  spec->metrics = &context.metrics;
  if (context.span != nullptr) {
    RequestSpan& span = context.span->span();
    span.model = context.model.name();
    span.temperature = params.sampling.temperature;
    span.top_p = params.sampling.top_p;
    span.n = params.n;
    spec->span = context.span;
  }
  prototype->sampling = params.sampling;
  prototype->n = params.n;
  prototype->min_tokens = params.min_tokens;
  prototype->ignore_eos = params.ignore_eos;
  prototype->num_speculative_tokens = params.num_speculative_tokens;
  if (params.grammar != nullptr) {
    prototype->constraint = MakeConstraint(params.grammar, context.model.tokenizer, {});
  }
  prototype->stop_token_ids = params.stop_token_ids;
  prototype->priority = params.caller.priority;
  prototype->user = params.caller.user;
  prototype->cache_salt = params.cache_salt;
  return {};
}

Result<std::vector<std::int32_t>> ParseIds(const Json& value,
                                           const std::string& path,
                                           std::int64_t vocab_size,
                                           std::size_t max_count,
                                           Fault* fault) {
  if (!value.is_array()) {
    return FieldError(
        fault, path, "{} must be a list of token ids, not {}", path, value.type_name());
  }
  if (value.size() > max_count) {
    return FieldError(
        fault, path, "{} has {} ids; at most {} are allowed", path, value.size(), max_count);
  }
  const IntLimit limit{"", 0, vocab_size - 1};
  std::vector<std::int32_t> ids;
  ids.reserve(value.size());
  for (const Json& item : value) {
    if (item.is_number_unsigned() &&
        item.get<std::uint64_t>() < static_cast<std::uint64_t>(vocab_size)) {
      ids.push_back(item.get<std::int32_t>());
      continue;
    }
    INFERD_ASSIGN(const std::int64_t id,
                  ToInt(item, limit, fmt::format("{}[{}]", path, ids.size()), fault));
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

Result<> AddPrompts(const ServerContext& context,
                    std::vector<std::vector<std::int32_t>> prompts,
                    const leader::GenerateRequest& prototype,
                    std::optional<std::int64_t> asked,
                    std::int64_t fallback,
                    std::string_view param,
                    GenerationSpec* spec,
                    Fault* fault) {
  const std::int64_t room = context.service.max_model_len();
  const std::int64_t choices = static_cast<std::int64_t>(prompts.size()) * prototype.n;
  if (choices > context.service.max_choices()) {
    return FieldError(fault,
                      prototype.n > 1 ? "n" : std::string(param),
                      "the request has {} choices; this server takes at most {} at once "
                      "(--max-waiting): ask for fewer",
                      choices,
                      context.service.max_choices());
  }
  std::int64_t most_tokens = 0;
  for (auto& prompt : prompts) {
    const auto length = static_cast<std::int64_t>(prompt.size());
    const std::int64_t wanted = asked.value_or(1);
    if (length > room || wanted > room - length) {
      *fault = {std::string(param), "context_length_exceeded"};
      return InvalidArgument(
          "The prompt has {} tokens and {} were asked for, but this model's context holds {}; "
          "shorten the prompt or lower "
          "max_tokens",
          length,
          wanted,
          room);
    }
    leader::GenerateRequest request = prototype;
    request.prompt = std::move(prompt);
    if (context.admission != nullptr) {
      request.tenant = context.admission->tenant();
      request.weight = context.admission->weight();
      request.priority = context.admission->PriorityFor(prototype.priority);
      request.cache_salt = context.admission->CacheSaltFor(prototype.cache_salt);
    }
    request.session = context.session;
    if (context.background) {
      request.priority = static_cast<std::int32_t>(limits::kPriority.max);
    }
    request.max_tokens =
        static_cast<std::int32_t>(asked.value_or(std::min(fallback, room - length)));
    request.min_tokens = std::min(request.min_tokens, request.max_tokens);
    most_tokens += length + std::int64_t{request.n} * request.max_tokens;
    spec->requests.push_back(std::move(request));
  }
  spec->admission = context.admission;
  if (spec->span != nullptr && !spec->requests.empty()) {
    spec->span->span().max_tokens = spec->requests.front().max_tokens;
  }
  return ReserveTokens(context, most_tokens, fault);
}

Result<std::vector<std::int32_t>> EncodePrompt(const ServerContext& context,
                                               std::string_view text,
                                               bool add_special,
                                               std::string_view param,
                                               Fault* fault,
                                               std::optional<std::int64_t> keep) {
  const auto room = static_cast<std::size_t>(context.service.max_model_len());
  const std::size_t longest = context.model.longest_token_bytes;
  if (!keep && longest > 0 && text.size() / longest > room) {
    *fault = {std::string(param), "context_length_exceeded"};
    return InvalidArgument(
        "The prompt has {} bytes and at least {} tokens, but this model's context holds {}; "
        "shorten it",
        text.size(),
        text.size() / longest,
        room);
  }
  INFERD_ASSIGN(
      auto ids,
      context.model.tokenizer->Encode(text, {.add_special = add_special, .parse_special = true}));
  if (keep) {
    CutPrompt(*keep, context.service.model().bos_id, &ids);
  }
  return ids;
}

std::string NewId(std::string_view prefix) {
  return fmt::format("{}{:016x}{:016x}", prefix, Random()(), Random()());
}

std::int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace inferd::api
