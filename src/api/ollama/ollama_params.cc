// SPDX-License-Identifier: Apache-2.0
#include "api/ollama/ollama_params.h"

#include "api/core/constraint.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <string>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

constexpr RealLimit kRepeatPenalty{"repeat_penalty", 0, 100, true};
// Not positive: as many as fit.
constexpr IntLimit kNumPredict{"num_predict", -limits::kInt32Max, limits::kInt32Max};

/// A field that would change the answer and is not supported; `idle` is the value that asks for
/// nothing.
struct Refused {
  std::string_view name;
  double idle;
};
constexpr Refused kRefusedOptions[] = {{"mirostat", 0}, {"tfs_z", 1}, {"draft_num_predict", 0}};

bool AsksForNothing(const Json& value) {
  return value.empty() || value == "" || (value.is_boolean() && !value.get<bool>());
}

Result<> ReadOptions(const Fields& options, GenerateParams* params) {
  for (const Refused& refused : kRefusedOptions) {
    const Json* const value = options.Find(refused.name);
    if (value != nullptr && !(value->is_number() && value->get<double>() == refused.idle)) {
      return NotSupported(options.fault(), options.Path(refused.name));
    }
  }
  spec::SamplingParams& sampling = params->sampling;
  INFERD_ASSIGN(const auto temperature, options.Real(limits::kTemperature));
  INFERD_ASSIGN(const auto top_p, options.Real(limits::kTopP));
  INFERD_ASSIGN(const auto min_p, options.Real(limits::kMinP));
  INFERD_ASSIGN(const auto top_k, options.Int(limits::kTopK));
  INFERD_ASSIGN(const auto repeat, options.Real(kRepeatPenalty));
  INFERD_ASSIGN(const auto presence, options.Real(limits::kPresencePenalty));
  INFERD_ASSIGN(const auto frequency, options.Real(limits::kFrequencyPenalty));
  INFERD_ASSIGN(const auto seed, options.Int(limits::kSeed));
  INFERD_ASSIGN(const auto num_predict, options.Int(kNumPredict));
  INFERD_ASSIGN(const auto typical_p, options.Real(limits::kTypicalP));
  sampling.typical_p = typical_p.value_or(sampling.typical_p);
  INFERD_ASSIGN(params->stop, ParseStops(options, "stop"));
  sampling.temperature = temperature.value_or(sampling.temperature);
  sampling.top_p = top_p.value_or(sampling.top_p);
  sampling.min_p = min_p.value_or(sampling.min_p);
  sampling.top_k =
      static_cast<std::int32_t>(std::max<std::int64_t>(0, top_k.value_or(sampling.top_k)));
  sampling.repetition_penalty = repeat.value_or(sampling.repetition_penalty);
  sampling.presence_penalty = presence.value_or(sampling.presence_penalty);
  sampling.frequency_penalty = frequency.value_or(sampling.frequency_penalty);
  sampling.seed = seed ? static_cast<std::uint64_t>(*seed) : sampling.seed;
  if (num_predict.value_or(-1) > 0) {
    params->max_tokens_bound = *num_predict;
  }
  return {};
}

/// true and false, or how much.
Result<> ReadThink(const Fields& fields, ChatRequest* chat) {
  const Json* const think = fields.Find("think");
  if (think == nullptr) {
    return {};
  }
  const bool level = *think == "low" || *think == "medium" || *think == "high";
  if (!think->is_boolean() && !level) {
    return FieldError(
        fields.fault(), "think", "think must be true, false, \"low\", \"medium\" or \"high\"");
  }
  if (level) {
    chat->reasoning_effort = think->get<std::string>();
  }
  chat->template_kwargs =
      level || think->get<bool>() ? R"({"enable_thinking":true})" : R"({"enable_thinking":false})";
  return {};
}

/// `format`: "json", or a schema.
Result<std::shared_ptr<const text::Grammar>> ReadAnswerFormat(const ServerContext& context,
                                                              const Fields& fields) {
  const Json* const format = fields.Find("format");
  if (format == nullptr || *format == "") {
    return std::shared_ptr<const text::Grammar>();
  }
  const bool any = *format == "json";
  if (!any && !format->is_object()) {
    return FieldError(fields.fault(), "format", "format must be \"json\" or a JSON schema");
  }
  return CompileGrammar(context,
                        any ? text::GrammarKind::kJsonObject : text::GrammarKind::kJsonSchema,
                        any ? "" : format->dump(-1, ' ', false, Json::error_handler_t::replace),
                        "format",
                        fields.fault());
}

}  // namespace

Result<> CheckOllamaModel(const ServerContext& context, const Fields& fields) {
  INFERD_ASSIGN(auto name, fields.String("model"));
  if (!name) {
    INFERD_ASSIGN(name, fields.String("name"));
  }
  if (!name || name->empty()) {
    return FieldError(fields.fault(), "model", "model is missing");
  }
  constexpr std::string_view kLatest = ":latest";
  std::string_view plain = *name;
  plain.remove_suffix(plain.ends_with(kLatest) ? kLatest.size() : 0);
  if (!context.model.Answers(*name) && !context.model.Answers(plain)) {
    *fields.fault() = {"model", "model_not_found"};
    return NotFound(
        "model '{}' not found; this server has '{}'", name->substr(0, 100), context.model.name());
  }
  return MayUseModel(context, context.model.Answers(*name) ? *name : plain, fields.fault());
}

Result<> ReadOllamaParams(const ServerContext& context, const Fields& fields, ChatRequest* chat) {
  for (const std::string_view name : {"template", "context", "suffix", "images", "logprobs"}) {
    const Json* const value = fields.Find(name);
    if (value != nullptr && !AsksForNothing(*value)) {
      return NotSupported(fields.fault(), std::string(name));
    }
  }
  chat->params = DefaultParams(context.model);
  INFERD_ASSIGN(chat->params.grammar, ReadAnswerFormat(context, fields));
  INFERD_ASSIGN(chat->params.stream, fields.BoolOr("stream", true));
  if (const Json* const options = fields.Find("options")) {
    if (!options->is_object()) {
      return FieldError(
          fields.fault(), "options", "options must be an object, not {}", options->type_name());
    }
    INFERD_TRY(ReadOptions(Fields(*options, fields.fault(), "options."), &chat->params));
  }
  return ReadThink(fields, chat);
}

}  // namespace inferd::api
