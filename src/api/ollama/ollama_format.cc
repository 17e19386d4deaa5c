// SPDX-License-Identifier: Apache-2.0
#include "api/ollama/ollama_format.h"

#include "api/core/json_writer.h"
#include "api/ollama/endpoints.h"

#include <fmt/chrono.h>

#include <chrono>
#include <ctime>

namespace inferd::api {

using Kind = text::OutputDelta::Kind;

std::string OllamaTime(std::int64_t unix_us) {
  const std::time_t seconds = unix_us / 1'000'000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z", utc, unix_us % 1'000'000);
}

std::string OllamaTimeNow() {
  return OllamaTime(std::chrono::duration_cast<std::chrono::microseconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count());
}

std::string OllamaErrorBody(const Error& error, const Fault& /*fault*/) {
  std::string body = R"({"error":)";
  AppendQuoted(PublicMessage(error), &body);
  body += '}';
  return body;
}

OllamaFormat::OllamaFormat(Shape shape, std::string_view model) : shape_(shape) {
  model_ = R"({"model":)";
  AppendQuoted(model, &model_);
  model_ += R"(,"created_at":)";
}

/// All of an object but its end.
void OllamaFormat::BeginLine(const Said& said, std::string* out) const {
  *out += model_;
  AppendQuoted(OllamaTimeNow(), out);
  *out +=
      shape_ == Shape::kChat ? R"(,"message":{"role":"assistant","content":)" : R"(,"response":)";
  AppendQuoted(said.content, out);
  if (!said.thinking.empty()) {
    *out += R"(,"thinking":)";
    AppendQuoted(said.thinking, out);
  }
  if (!said.calls.empty()) {
    *out += R"(,"tool_calls":[)";
    *out += said.calls;
    *out += ']';
  }
  *out += shape_ == Shape::kChat ? "}" : "";
}

void OllamaFormat::AppendLine(const Said& said, std::string* out) const {
  BeginLine(said, out);
  *out += ",\"done\":false}\n";
}

void OllamaFormat::AppendDone(const Usage& usage, std::string* out) const {
  *out += R"(,"done":true,"done_reason":)";
  AppendQuoted(finish_ == leader::FinishReason::kLength ? "length" : "stop", out);
  *out += R"(,"total_duration":)";
  AppendInt(usage.prompt_ns + usage.completion_ns, out);
  *out += R"(,"load_duration":0,"prompt_eval_count":)";
  AppendInt(usage.prompt_tokens, out);
  *out += R"(,"prompt_eval_duration":)";
  AppendInt(usage.prompt_ns, out);
  *out += R"(,"eval_count":)";
  AppendInt(usage.completion_tokens, out);
  *out += R"(,"eval_duration":)";
  AppendInt(usage.completion_ns, out);
  *out += '}';
}

void OllamaFormat::CloseCall() {
  if (!call_) {
    return;
  }
  if (!calls_.empty()) {
    calls_ += ',';
  }
  calls_ += R"({"id":)";
  AppendQuoted(call_->id, &calls_);
  calls_ += R"(,"function":{"index":)";
  AppendInt(num_calls_++, &calls_);
  calls_ += R"(,"name":)";
  AppendQuoted(call_->name, &calls_);
  calls_ += R"(,"arguments":)";
  AppendArguments(call_->arguments, &calls_);
  calls_ += "}}";
  call_.reset();
}

void OllamaFormat::AppendOpening(const ReplyPiece& /*piece*/, std::string* /*out*/) {}

void OllamaFormat::AppendPiece(const ReplyPiece& piece, std::string* out) {
  const auto send_calls = [&] {
    CloseCall();
    if (!calls_.empty()) {
      AppendLine({.content = {}, .thinking = {}, .calls = calls_}, out);
      calls_.clear();
    }
  };
  VisitParts(piece, [&](Kind kind, std::string_view id, std::string_view text) {
    if (kind == Kind::kToolArguments) {
      if (call_) {
        call_->arguments += text;
      }
      return;
    }
    send_calls();
    if (kind == Kind::kToolCall) {
      call_ = {std::string(id), std::string(text), ""};
    } else if (kind == Kind::kReasoning) {
      AppendLine({.content = {}, .thinking = text, .calls = {}}, out);
    } else {
      AppendLine({.content = text, .thinking = {}, .calls = {}}, out);
    }
  });
  if (piece.finish != leader::FinishReason::kNone) {
    send_calls();
    finish_ = piece.finish;
  }
}

void OllamaFormat::AppendEnd(const Usage& usage, bool /*usage_asked*/, std::string* out) {
  BeginLine({}, out);
  AppendDone(usage, out);
  *out += '\n';
}

void OllamaFormat::AppendFailure(const Error& error, std::string* out) {
  *out += OllamaErrorBody(error, {}) + "\n";
}

std::string OllamaFormat::FailureBody(const Error& error) const {
  return OllamaErrorBody(error, {});
}

void OllamaFormat::AppendFull(std::span<const ReplyPiece> choices,
                              const Usage& usage,
                              std::string* out) {
  const ReplyPiece& piece = choices.front();
  finish_ = piece.finish;
  std::string content;
  std::string thinking;
  VisitParts(piece, [&](Kind kind, std::string_view id, std::string_view text) {
    if (kind == Kind::kToolCall) {
      CloseCall();
      call_ = {std::string(id), std::string(text), ""};
    } else if (kind == Kind::kToolArguments) {
      if (call_) {
        call_->arguments += text;
      }
    } else {
      (kind == Kind::kReasoning ? thinking : content) += text;
    }
  });
  CloseCall();
  BeginLine({.content = content, .thinking = thinking, .calls = calls_}, out);
  AppendDone(usage, out);
}

}  // namespace inferd::api
