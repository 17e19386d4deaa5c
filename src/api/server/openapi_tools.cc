// SPDX-License-Identifier: Apache-2.0
// What the OpenAPI document says of tools, output formats and reasoning: schemas of their own, and
// the fields that have them.
#include "api/core/limits.h"
#include "api/server/openapi.h"

#include <nlohmann/json.hpp>

#include <string>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSchemas = R"json({
  "ToolName": {"type": "string", "pattern": "^[A-Za-z0-9_.-]+$", "minLength": 1},
  "ToolParameters": {
    "description": "A JSON schema of an object",
    "anyOf": [{"type": "object", "properties": {"type": {"const": "object"}, "properties": {"type": "object"}}},
              {"type": "null"}]},
  "Function": {
    "type": "object",
    "properties": {
      "name": {"$ref": "#/components/schemas/ToolName"},
      "description": {"type": ["string", "null"]},
      "parameters": {"$ref": "#/components/schemas/ToolParameters"},
      "strict": {"type": ["boolean", "null"]}},
    "required": ["name"]},
  "ChatTool": {
    "type": "object",
    "properties": {"type": {"const": "function"}, "function": {"$ref": "#/components/schemas/Function"}},
    "required": ["type", "function"]},
  "ChatToolChoice": {
    "anyOf": [
      {"enum": ["auto", "none", "required"]},
      {"type": "object",
       "properties": {
         "type": {"const": "function"},
         "function": {"type": "object", "properties": {"name": {"$ref": "#/components/schemas/ToolName"}}, "required": ["name"]}},
       "required": ["type", "function"]},
      {"type": "null"}]},
  "ChatToolCall": {
    "type": "object",
    "properties": {
      "id": {"type": "string"},
      "type": {"const": "function"},
      "function": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
        "required": ["name", "arguments"]}},
    "required": ["function"]},
  "ResponseFormat": {
    "anyOf": [
      {"type": "object", "properties": {"type": {"enum": ["text", "json_object"]}}, "required": ["type"]},
      {"type": "object",
       "properties": {
         "type": {"const": "json_schema"},
         "json_schema": {
           "type": "object",
           "properties": {"name": {"type": "string"}, "strict": {"type": ["boolean", "null"]}, "schema": {"type": "object"}},
           "required": ["schema"]}},
       "required": ["type", "json_schema"]},
      {"type": "null"}]},
  "OutputFormat": {
    "anyOf": [
      {"type": "object", "properties": {"type": {"enum": ["text", "json_object"]}}, "required": ["type"]},
      {"type": "object",
       "properties": {
         "type": {"const": "json_schema"}, "name": {"type": "string"},
         "strict": {"type": ["boolean", "null"]}, "schema": {"type": "object"}},
       "required": ["type", "schema"]},
      {"type": "null"}]},
  "ResponseTool": {
    "type": "object",
    "properties": {
      "type": {"const": "function"},
      "name": {"$ref": "#/components/schemas/ToolName"},
      "description": {"type": ["string", "null"]},
      "parameters": {"$ref": "#/components/schemas/ToolParameters"},
      "strict": {"type": ["boolean", "null"]}},
    "required": ["type", "name"]},
  "ResponseToolChoice": {
    "anyOf": [
      {"enum": ["auto", "none", "required"]},
      {"type": "object",
       "properties": {"type": {"const": "function"}, "name": {"$ref": "#/components/schemas/ToolName"}},
       "required": ["type", "name"]},
      {"type": "null"}]},
  "AnthropicTool": {
    "type": "object",
    "properties": {
      "type": {"const": "custom"},
      "name": {"$ref": "#/components/schemas/ToolName"},
      "description": {"type": ["string", "null"]},
      "input_schema": {"type": "object", "properties": {"type": {"const": "object"}, "properties": {"type": "object"}}},
      "strict": {"type": ["boolean", "null"]}},
    "required": ["name", "input_schema"]},
  "AnthropicToolChoice": {
    "anyOf": [
      {"type": "object",
       "properties": {
         "type": {"enum": ["auto", "any", "none"]}, "disable_parallel_tool_use": {"type": ["boolean", "null"]}},
       "required": ["type"]},
      {"type": "object",
       "properties": {
         "type": {"const": "tool"},
         "name": {"$ref": "#/components/schemas/ToolName"},
         "disable_parallel_tool_use": {"type": ["boolean", "null"]}},
       "required": ["type", "name"]},
      {"type": "null"}]},
  "AnthropicBlock": {
    "anyOf": [
      {"type": "object", "properties": {"type": {"const": "text"}, "text": {"type": "string"}}, "required": ["type", "text"]},
      {"type": "object",
       "properties": {"type": {"const": "thinking"}, "thinking": {"type": "string"}, "signature": {"type": "string"}},
       "required": ["type", "thinking"]},
      {"type": "object",
       "properties": {
         "type": {"const": "tool_use"}, "id": {"type": "string"}, "name": {"type": "string"}, "input": {"type": "object"}},
       "required": ["type", "id", "name", "input"]},
      {"type": "object",
       "properties": {
         "type": {"const": "tool_result"}, "tool_use_id": {"type": "string"}, "content": {"type": "string"}},
       "required": ["type", "tool_use_id"]}]},
  "AnthropicThinking": {
    "anyOf": [
      {"type": "object",
       "properties": {
         "type": {"enum": ["enabled", "disabled", "adaptive"]}, "budget_tokens": {"type": "integer", "minimum": 1024}},
       "required": ["type"]},
      {"type": "null"}]},
  "AnthropicOutputConfig": {
    "anyOf": [
      {"type": "object",
       "properties": {
         "effort": {"type": ["string", "null"]}, "format": {"$ref": "#/components/schemas/OutputFormat"}}},
      {"type": "null"}]},
  "OllamaTool": {
    "type": "object",
    "properties": {"type": {"const": "function"}, "function": {"$ref": "#/components/schemas/Function"}},
    "required": ["function"]},
  "OllamaToolCall": {
    "type": "object",
    "properties": {
      "id": {"type": "string"},
      "function": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
        "required": ["name", "arguments"]}},
    "required": ["function"]},
  "OllamaFormat": {"anyOf": [{"enum": ["", "json"]}, {"type": "object"}, {"type": "null"}]},
  "OllamaThink": {"anyOf": [{"type": "boolean"}, {"enum": ["low", "medium", "high"]}, {"type": "null"}]}
})json";

struct FieldDoc {
  const char* schema;
  const char* field;
  const char* type;  // of another schema, or of its list; empty: a text
  bool list;
};
constexpr FieldDoc kFields[] = {
    {"ChatMessage", "tool_calls", "ChatToolCall", true},
    {"ChatMessage", "tool_call_id", "", false},
    {"ChatMessage", "reasoning_content", "", false},
    {"ChatCompletionRequest", "tools", "ChatTool", true},
    {"ChatCompletionRequest", "tool_choice", "ChatToolChoice", false},
    {"ChatCompletionRequest", "response_format", "ResponseFormat", false},
    {"CompletionRequest", "response_format", "ResponseFormat", false},
    {"ResponseRequest", "tools", "ResponseTool", true},
    {"ResponseRequest", "tool_choice", "ResponseToolChoice", false},
    {"ResponseRequest", "previous_response_id", "", false},
    {"AnthropicRequest", "tools", "AnthropicTool", true},
    {"AnthropicRequest", "tool_choice", "AnthropicToolChoice", false},
    {"AnthropicRequest", "thinking", "AnthropicThinking", false},
    {"AnthropicRequest", "output_config", "AnthropicOutputConfig", false},
    {"OllamaMessage", "tool_calls", "OllamaToolCall", true},
    {"OllamaMessage", "tool_name", "", false},
    {"OllamaMessage", "tool_call_id", "", false},
    {"OllamaMessage", "thinking", "", false},
    {"OllamaChatRequest", "tools", "OllamaTool", true},
    {"OllamaChatRequest", "format", "OllamaFormat", false},
    {"OllamaChatRequest", "think", "OllamaThink", false},
    {"OllamaGenerateRequest", "format", "OllamaFormat", false},
    {"OllamaGenerateRequest", "think", "OllamaThink", false},
};

Json TypeOf(const FieldDoc& field) {
  if (*field.type == 0) {
    return {{"type", {"string", "null"}}};
  }
  Json one = {{"$ref", std::string("#/components/schemas/") + field.type}};
  if (!field.list) {
    return one;
  }
  const std::size_t most = std::string_view(field.type).ends_with("Tool") ? limits::kTools : 128;
  return {{"type", {"array", "null"}}, {"maxItems", most}, {"items", std::move(one)}};
}

}  // namespace

void AddOpenApiTools(Json* schemas) {
  schemas->update(Json::parse(kSchemas));
  (*schemas)["ToolName"]["maxLength"] = limits::kToolNameBytes;
  for (const FieldDoc& field : kFields) {
    (*schemas)[field.schema]["properties"][field.field] = TypeOf(field);
  }
  const Json flag = {{"type", {"boolean", "null"}}};
  for (const char* const schema : {"ChatCompletionRequest", "ResponseRequest"}) {
    (*schemas)[schema]["properties"]["parallel_tool_calls"] = flag;
  }
  (*schemas)["ChatCompletionRequest"]["properties"]["include_reasoning"] = flag;
  const Json format = {{"$ref", "#/components/schemas/OutputFormat"}};
  (*schemas)["ResponseRequest"]["properties"]["text"] = {{"type", {"object", "null"}},
                                                         {"properties", {{"format", format}}}};
  (*schemas)["ResponseRequest"]["properties"]["reasoning"] = {
      {"type", {"object", "null"}}, {"properties", {{"effort", {{"type", {"string", "null"}}}}}}};
  Json& answer = (*schemas)["ChatCompletion"]["properties"]["choices"]["items"]["properties"];
  answer["message"]["properties"]["tool_calls"] = {
      {"type", "array"}, {"items", {{"$ref", "#/components/schemas/ChatToolCall"}}}};
  answer["message"]["properties"]["reasoning_content"] = {{"type", "string"}};
}

}  // namespace inferd::api
