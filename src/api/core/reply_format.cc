// SPDX-License-Identifier: Apache-2.0
#include "api/core/reply_format.h"

#include "api/core/error_map.h"
#include "api/core/json_writer.h"

#include <nlohmann/json.hpp>

namespace inferd::api {

void ReplyFormat::AppendStart(const Usage& /*usage*/, std::string* /*out*/) {}

void ReplyFormat::AppendFailure(const Error& error, std::string* out) {
  *out += "data: " + ErrorBody(error, {}) + "\n\ndata: [DONE]\n\n";
}

std::string ReplyFormat::FailureBody(const Error& error) const { return ErrorBody(error, {}); }

std::string_view FinishName(leader::FinishReason finish) {
  switch (finish) {
    case leader::FinishReason::kStop:
      return "stop";
    case leader::FinishReason::kLength:
      return "length";
    case leader::FinishReason::kCancelled:
      return "abort";
    case leader::FinishReason::kError:
      return "error";
    case leader::FinishReason::kNone:
      break;
  }
  return "";
}

void AppendUsageObject(const Usage& usage, std::string* out) {
  *out += R"({"prompt_tokens":)";
  AppendInt(usage.prompt_tokens, out);
  *out += R"(,"completion_tokens":)";
  AppendInt(usage.completion_tokens, out);
  *out += R"(,"total_tokens":)";
  AppendInt(usage.prompt_tokens + usage.completion_tokens, out);
  *out += R"(,"prompt_tokens_details":{"cached_tokens":)";
  AppendInt(usage.cached_tokens, out);
  if (usage.reasoning_tokens > 0) {
    *out += R"(},"completion_tokens_details":{"reasoning_tokens":)";
    AppendInt(usage.reasoning_tokens, out);
  }
  *out += "}}";
}

void AppendArguments(std::string_view arguments, std::string* out) {
  if (arguments.empty()) {
    *out += "{}";
    return;
  }
  if (nlohmann::json::parse(arguments, nullptr, false).is_object()) {
    *out += arguments;
    return;
  }
  *out += R"({"INVALID_JSON":)";
  AppendQuoted(arguments, out);
  *out += '}';
}

void AppendFinish(const ReplyPiece& piece, std::string* out) {
  if (piece.finish == leader::FinishReason::kNone) {
    *out += R"(,"finish_reason":null)";
    return;
  }
  *out += R"(,"finish_reason":")";
  const bool calls = piece.has_tool_calls && piece.finish == leader::FinishReason::kStop;
  *out += calls ? "tool_calls" : FinishName(piece.finish);
  *out += R"(","stop_reason":)";
  if (const auto* text = std::get_if<std::string>(piece.stop_reason)) {
    AppendQuoted(*text, out);
  } else if (const auto* id = std::get_if<std::int32_t>(piece.stop_reason)) {
    AppendInt(*id, out);
  } else {
    *out += "null";
  }
}

}  // namespace inferd::api
