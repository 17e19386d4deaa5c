// SPDX-License-Identifier: Apache-2.0
// Schemas of requests and replies. Requests name the fields that are checked, with the limits that
// they are checked against; other fields are ignored or refused by name (docs/api.md).
#include "api/core/batch_state.h"
#include "api/core/limits.h"
#include "api/server/openapi.h"

#include <nlohmann/json.hpp>

#include <initializer_list>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

Json Ref(std::string_view name) { return {{"$ref", "#/components/schemas/" + std::string(name)}}; }

Json OrNull(Json schema) {
  return {{"anyOf", Json::array({std::move(schema), {{"type", "null"}}})}};
}

Json Text() { return {{"type", "string"}}; }
Json Flag() { return OrNull({{"type", "boolean"}}); }
Json ListOf(Json items) { return {{"type", "array"}, {"items", std::move(items)}}; }
Json Count() { return {{"type", "integer"}, {"minimum", 0}}; }

Json Number(const IntLimit& limit) {
  return OrNull({{"type", "integer"}, {"minimum", limit.min}, {"maximum", limit.max}});
}

Json Number(const RealLimit& limit) {
  Json schema{{"type", "number"}, {"maximum", limit.max}};
  schema[limit.min_exclusive ? "exclusiveMinimum" : "minimum"] = limit.min;
  return OrNull(std::move(schema));
}

Json Object(Json properties, std::initializer_list<const char*> required) {
  Json schema{{"type", "object"}, {"properties", std::move(properties)}};
  if (required.size() > 0) {
    schema["required"] = Json(required);
  }
  return schema;
}

/// The fields that chat and completions share.
Json Sampling() {
  Json stop = {
      {"anyOf",
       Json::array({{{"type", "string"}, {"minLength", 1}, {"maxLength", limits::kStopBytes}},
                    {{"type", "array"},
                     {"maxItems", limits::kStopStrings},
                     {"items", {{"type", "string"}, {"minLength", 1}}}},
                    {{"type", "null"}}})}};
  return {{"model", OrNull(Text())},
          {"metadata", Json::object()},          // for the client's own use
          {"prompt_cache_key", Json::object()},  // prefixes are found without it
          {"temperature", Number(limits::kTemperature)},
          {"top_p", Number(limits::kTopP)},
          {"top_k", Number(limits::kTopK)},
          {"min_p", Number(limits::kMinP)},
          {"repetition_penalty", Number(limits::kRepetitionPenalty)},
          {"presence_penalty", Number(limits::kPresencePenalty)},
          {"frequency_penalty", Number(limits::kFrequencyPenalty)},
          {"seed", Number(limits::kSeed)},
          {"n", Number(limits::kN)},
          {"min_tokens", Number(limits::kMinTokens)},
          {"num_speculative_tokens", Number(limits::kSpeculativeTokens)},
          {"stop", std::move(stop)},
          {"stream", Flag()},
          {"ignore_eos", Flag()},
          {"include_stop_str_in_output", Flag()},
          {"skip_special_tokens", Flag()},
          {"spaces_between_special_tokens", Flag()},
          {"priority", Number(limits::kPriority)},
          {"service_tier", OrNull({{"enum", {"auto", "default", "flex", "priority"}}})},
          {"user", OrNull(Text())},
          {"safety_identifier", OrNull(Text())},
          {"truncate_prompt_tokens", Number(limits::kTruncatePromptTokens)},
          {"prompt_logprobs", Number(limits::kPromptLogprobs)},
          {"return_token_ids", Flag()},
          {"return_tokens_as_token_ids", Flag()},
          {"timings_per_token", Flag()}};
}

/// The rarer samplers.
void AddSamplers(Json* properties) {
  for (const RealLimit& limit : {limits::kTypicalP,
                                 limits::kXtcProbability,
                                 limits::kXtcThreshold,
                                 limits::kDynatempRange,
                                 limits::kDynatempExponent,
                                 limits::kDryMultiplier,
                                 limits::kDryBase}) {
    (*properties)[std::string(limit.name)] = Number(limit);
  }
  (*properties)["dry_allowed_length"] = Number(limits::kDryAllowedLength);
  (*properties)["dry_penalty_last_n"] = Number(limits::kDryPenaltyLastN);
  (*properties)["dry_sequence_breakers"] =
      OrNull({{"type", "array"},
              {"maxItems", limits::kBreakers},
              {"items", {{"type", "string"}, {"minLength", 1}}}});
  (*properties)["samplers"] = OrNull(
      {{"type", "array"},
       {"maxItems", limits::kSamplers},
       {"items",
        {{"enum",
          {"temperature", "top_k", "typ_p", "top_p", "min_p", "xtc", "dry", "penalties"}}}}});
}

Json Message() {
  const Json part = Object({{"type", {{"const", "text"}}}, {"text", Text()}}, {"type", "text"});
  return Object({{"role", {{"enum", {"system", "developer", "user", "assistant", "tool"}}}},
                 {"content", {{"anyOf", Json::array({Text(), ListOf(part), {{"type", "null"}}})}}}},
                {"role"});
}

Json Messages(std::string_view message) {
  return {
      {"type", "array"}, {"minItems", 1}, {"maxItems", limits::kMessages}, {"items", Ref(message)}};
}

Json ChatRequestSchema() {
  Json properties = Sampling();
  properties["messages"] = Messages("ChatMessage");
  properties["max_tokens"] = Number(limits::kMaxTokens);
  properties["max_completion_tokens"] = Number(limits::kMaxCompletionTokens);
  properties["logprobs"] = Flag();
  properties["top_logprobs"] = Number(limits::kTopLogprobs);
  properties["reasoning_effort"] = OrNull(Text());
  properties["thinking_token_budget"] = Number(limits::kThinkingBudget);
  AddSamplers(&properties);
  properties["chat_template_kwargs"] = OrNull({{"type", "object"}});
  return Object(std::move(properties), {"messages"});
}

Json CompletionRequestSchema() {
  const Json ids = ListOf(Count());
  Json properties = Sampling();
  properties["prompt"] = {{"anyOf", Json::array({Text(), ListOf(Text()), ids, ListOf(ids)})}};
  properties["max_tokens"] = Number(limits::kMaxTokensOrZero);
  properties["logprobs"] = Number(limits::kLogprobs);
  properties["echo"] = Flag();
  AddSamplers(&properties);
  return Object(std::move(properties), {"prompt"});
}

Json UsageSchema() {
  return Object(
      {{"prompt_tokens", Count()},
       {"completion_tokens", Count()},
       {"total_tokens", Count()},
       {"prompt_tokens_details", Object({{"cached_tokens", Count()}}, {"cached_tokens"})}},
      {"prompt_tokens", "completion_tokens", "total_tokens"});
}

Json ReplySchema(std::string_view object, Json choice) {
  return Object({{"id", Text()},
                 {"object", {{"const", object}}},
                 {"created", Count()},
                 {"model", Text()},
                 {"choices", ListOf(std::move(choice))},
                 {"usage", Ref("Usage")}},
                {"id", "object", "created", "model", "choices", "usage"});
}

Json Choice(std::string_view content, Json schema) {
  Json properties{
      {"index", Count()},
      {"finish_reason", {{"enum", {"stop", "length", "tool_calls", "content_filter"}}}}};
  properties[std::string(content)] = std::move(schema);
  return Object(std::move(properties), {"index", "finish_reason"});
}

void AddOpenAi(Json* schemas) {
  (*schemas)["ChatMessage"] = Message();
  (*schemas)["ChatCompletionRequest"] = ChatRequestSchema();
  (*schemas)["CompletionRequest"] = CompletionRequestSchema();
  (*schemas)["Usage"] = UsageSchema();
  (*schemas)["ChatCompletion"] = ReplySchema(
      "chat.completion",
      Choice("message",
             Object({{"role", {{"const", "assistant"}}}, {"content", OrNull(Text())}}, {"role"})));
  (*schemas)["Completion"] = ReplySchema("text_completion", Choice("text", Text()));
  const Json ids = ListOf(Count());
  (*schemas)["EmbeddingRequest"] =
      Object({{"model", OrNull(Text())},
              {"input", {{"anyOf", Json::array({Text(), ListOf(Text()), ids, ListOf(ids)})}}},
              {"encoding_format", {{"enum", {"float", "base64"}}}},
              {"dimensions", {{"type", "integer"}, {"minimum", 1}}}},
             {"input"});
  const Json texts = {{"anyOf", Json::array({Text(), ListOf(Text())})}};
  (*schemas)["ScoreRequest"] = Object(
      {{"model", OrNull(Text())}, {"text_1", texts}, {"text_2", texts}}, {"text_1", "text_2"});
  (*schemas)["RerankRequest"] = Object({{"model", OrNull(Text())},
                                        {"query", Text()},
                                        {"documents", ListOf(Text())},
                                        {"top_n", Count()},
                                        {"return_documents", Flag()}},
                                       {"query", "documents"});
  const Json vector = {{"anyOf", Json::array({ListOf({{"type", "number"}}), Text()})}};
  (*schemas)["EmbeddingList"] =
      Object({{"object", {{"const", "list"}}},
              {"data",
               ListOf(Object({{"index", Count()}, {"embedding", vector}}, {"index", "embedding"}))},
              {"model", Text()}},
             {"object", "data", "model"});
  (*schemas)["Model"] =
      Object({{"id", Text()}, {"object", {{"const", "model"}}}, {"created", Count()}},
             {"id", "object", "created"});
  (*schemas)["ModelList"] =
      Object({{"object", {{"const", "list"}}}, {"data", ListOf(Ref("Model"))}}, {"object", "data"});
  (*schemas)["TokenizeRequest"] = Object({{"model", OrNull(Text())},
                                          {"prompt", OrNull(Text())},
                                          {"messages", OrNull(Messages("ChatMessage"))},
                                          {"add_special_tokens", Flag()},
                                          {"return_token_strs", Flag()}},
                                         {});
  (*schemas)["Tokens"] = Object({{"count", Count()},
                                 {"max_model_len", Count()},
                                 {"tokens", ListOf(Count())},
                                 {"token_strs", OrNull(ListOf(Text()))}},
                                {"count", "max_model_len", "tokens"});
  (*schemas)["DetokenizeRequest"] = Object(
      {{"model", OrNull(Text())}, {"tokens", ListOf(Count())}, {"skip_special_tokens", Flag()}},
      {"tokens"});
  (*schemas)["Detokenized"] = Object({{"prompt", Text()}}, {"prompt"});
  (*schemas)["ResponseRequest"] =
      Object({{"model", OrNull(Text())},
              {"input", {{"anyOf", Json::array({Text(), ListOf({{"type", "object"}})})}}},
              {"instructions", OrNull(Text())},
              {"stream", Flag()},
              {"store", Flag()},
              {"temperature", Number(limits::kTemperature)},
              {"top_p", Number(limits::kTopP)}},
             {"input"});
}

void AddFiles(Json* schemas) {
  (*schemas)["FileUpload"] = Object({{"file", {{"type", "string"}, {"format", "binary"}}},
                                     {"purpose", {{"const", "batch"}}},
                                     {"expires_after[anchor]", {{"const", "created_at"}}},
                                     {"expires_after[seconds]",
                                      {{"type", "integer"},
                                       {"minimum", limits::kExpirySeconds.min},
                                       {"maximum", limits::kExpirySeconds.max}}}},
                                    {"file", "purpose"});
  (*schemas)["File"] =
      Object({{"id", Text()},
              {"object", {{"const", "file"}}},
              {"bytes", Count()},
              {"created_at", Count()},
              {"expires_at", Count()},
              {"filename", Text()},
              {"purpose", {{"enum", {"batch", "batch_output"}}}},
              {"status", {{"const", "processed"}}}},
             {"id", "object", "bytes", "created_at", "filename", "purpose", "status"});
  (*schemas)["BatchRequest"] = Object({{"input_file_id", Text()},
                                       {"endpoint", Text()},
                                       {"completion_window", {{"const", "24h"}}},
                                       {"metadata", OrNull({{"type", "object"}})}},
                                      {"input_file_id", "endpoint", "completion_window"});
  const Json counts = Object({{"total", Count()}, {"completed", Count()}, {"failed", Count()}},
                             {"total", "completed", "failed"});
  (*schemas)["Batch"] = Object({{"id", Text()},
                                {"object", {{"const", "batch"}}},
                                {"endpoint", Text()},
                                {"input_file_id", Text()},
                                {"completion_window", {{"const", "24h"}}},
                                {"status", {{"enum", kBatchStateNames}}},
                                {"output_file_id", OrNull(Text())},
                                {"error_file_id", OrNull(Text())},
                                {"created_at", Count()},
                                {"request_counts", counts},
                                {"errors", OrNull({{"type", "object"}})},
                                {"metadata", OrNull({{"type", "object"}})}},
                               {"id", "object", "endpoint", "input_file_id", "status"});
  const auto list_of = [](std::string_view schema) {
    return Object({{"object", {{"const", "list"}}},
                   {"data", ListOf(Ref(schema))},
                   {"first_id", OrNull(Text())},
                   {"last_id", OrNull(Text())},
                   {"has_more", {{"type", "boolean"}}}},
                  {"object", "data", "has_more"});
  };
  (*schemas)["FileList"] = list_of("File");
  (*schemas)["BatchList"] = list_of("Batch");
}

void AddOthers(Json* schemas) {
  (*schemas)["AnthropicRequest"] = Object(
      {{"model", Text()},
       {"max_tokens", {{"type", "integer"}, {"minimum", 1}}},
       {"system", OrNull(Text())},
       {"messages",
        {{"type", "array"},
         {"minItems", 1},
         {"items",
          Object({{"role", {{"enum", {"user", "assistant"}}}},
                  {"content", {{"anyOf", Json::array({Text(), ListOf(Ref("AnthropicBlock"))})}}}},
                 {"role", "content"})}}},
       {"stream", Flag()}},
      {"model", "messages", "max_tokens"});
  (*schemas)["OllamaMessage"] =
      Object({{"role", {{"enum", {"system", "user", "assistant", "tool"}}}}, {"content", Text()}},
             {"role", "content"});
  (*schemas)["OllamaChatRequest"] = Object({{"model", Text()},
                                            {"messages", ListOf(Ref("OllamaMessage"))},
                                            {"stream", Flag()},
                                            {"keep_alive", Json::object()},
                                            {"options", OrNull({{"type", "object"}})}},
                                           {"model", "messages"});
  (*schemas)["OllamaGenerateRequest"] = Object({{"model", Text()},
                                                {"prompt", Text()},
                                                {"stream", Flag()},
                                                {"keep_alive", Json::object()},
                                                {"options", OrNull({{"type", "object"}})}},
                                               {"model", "prompt"});
  (*schemas)["OllamaShowRequest"] =
      Object({{"model", Text()}, {"verbose", Json::object()}}, {"model"});
  (*schemas)["AbortRequest"] =
      Object({{"request_id", OrNull(Text())},
              {"request_ids",
               OrNull({{"type", "array"}, {"maxItems", limits::kAbortNames}, {"items", Text()}})}},
             {});
  const Json name = {{"type", "string"}, {"minLength", 1}, {"maxLength", limits::kServedNameBytes}};
  (*schemas)["ServedModelNameRequest"] =
      Object({{"served_model_name",
               {{"anyOf",
                 Json::array({name,
                              {{"type", "array"},
                               {"minItems", 1},
                               {"maxItems", limits::kServedNames},
                               {"items", name}}})}}}},
             {"served_model_name"});
  (*schemas)["RenderedList"] = ListOf({{"type", "object"}});
  (*schemas)["V2Request"] = Object({{"id", OrNull(Text())},
                                    {"text_input", OrNull(Text())},
                                    {"parameters", OrNull({{"type", "object"}})},
                                    {"inputs", OrNull(ListOf({{"type", "object"}}))}},
                                   {});
  (*schemas)["V2Index"] =
      ListOf(Object({{"name", Text()}, {"version", Text()}, {"state", Text()}}, {"name", "state"}));
  (*schemas)["AnyObject"] = {{"type", "object"}};
  (*schemas)["Error"] =
      Object({{"error", {{"anyOf", Json::array({{{"type", "object"}}, Text()})}}}}, {"error"});
}

}  // namespace

Json OpenApiSchemas() {
  Json schemas = Json::object();
  AddOpenAi(&schemas);
  AddFiles(&schemas);
  AddOthers(&schemas);
  AddOpenApiTools(&schemas);
  return schemas;
}

}  // namespace inferd::api
