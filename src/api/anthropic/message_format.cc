// SPDX-License-Identifier: Apache-2.0
#include "api/anthropic/message_format.h"

#include "api/anthropic/endpoints.h"
#include "api/core/json_writer.h"

#include <vector>

namespace inferd::api {
namespace {

using Kind = text::OutputDelta::Kind;

void AppendUsage(const Usage& usage, std::string* out) {
  *out += R"({"input_tokens":)";
  AppendInt(usage.prompt_tokens - usage.cached_tokens, out);
  *out += R"(,"cache_creation_input_tokens":0,"cache_read_input_tokens":)";
  AppendInt(usage.cached_tokens, out);
  *out += R"(,"output_tokens":)";
  AppendInt(usage.completion_tokens, out);
  *out += '}';
}

void AppendIndexed(std::string_view event, std::int64_t block, std::string* out) {
  *out += "event: ";
  *out += event;
  *out += "\ndata: {\"type\":\"";
  *out += event;
  *out += R"(","index":)";
  AppendInt(block, out);
}

/// One content block of a whole answer.
struct Block {
  Kind kind;
  std::string id;
  std::string name;
  std::string text;
};

std::vector<Block> BlocksOf(const ReplyPiece& piece) {
  std::vector<Block> blocks;
  VisitParts(piece, [&](Kind kind, std::string_view id, std::string_view text) {
    if (kind == Kind::kToolCall) {
      blocks.push_back({kind, std::string(id), std::string(text), ""});
      return;
    }
    const Kind block = kind == Kind::kToolArguments ? Kind::kToolCall : kind;
    if (blocks.empty() || blocks.back().kind != block) {
      blocks.push_back({block, "", "", ""});
    }
    blocks.back().text += text;
  });
  return blocks;
}

}  // namespace

MessageFormat::MessageFormat(std::string_view id, std::string_view model, std::int64_t max_tokens)
    : id_(id), max_tokens_(max_tokens) {
  head_ = R"("id":)";
  AppendQuoted(id, &head_);
  head_ += R"(,"type":"message","role":"assistant","model":)";
  AppendQuoted(model, &head_);
}

void MessageFormat::Remember(const ReplyPiece& piece) {
  finish_ = piece.finish;
  has_tool_calls_ = piece.has_tool_calls;
  if (piece.stop_reason != nullptr) {
    if (const auto* text = std::get_if<std::string>(piece.stop_reason)) {
      stop_sequence_ = *text;
    }
  }
}

/// "stop_reason":..,"stop_sequence":..
void MessageFormat::AppendStop(std::int64_t completion_tokens, std::string* out) const {
  std::string_view reason = "end_turn";
  if (stop_sequence_) {
    reason = "stop_sequence";
  } else if (finish_ != leader::FinishReason::kStop) {
    const bool context_full =
        finish_ == leader::FinishReason::kLength && completion_tokens < max_tokens_;
    reason = context_full ? "model_context_window_exceeded" : "max_tokens";
  } else if (has_tool_calls_) {
    reason = "tool_use";
  }
  *out += R"("stop_reason":")";
  *out += reason;
  *out += R"(","stop_sequence":)";
  if (stop_sequence_) {
    AppendQuoted(*stop_sequence_, out);
  } else {
    *out += "null";
  }
}

void MessageFormat::AppendStart(const Usage& usage, std::string* out) {
  *out += "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{";
  *out += head_;
  *out += R"(,"content":[],"stop_reason":null,"stop_sequence":null,"usage":)";
  Usage prompt = usage;
  prompt.completion_tokens = 0;
  AppendUsage(prompt, out);
  *out += "}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n";
}

void MessageFormat::AppendOpening(const ReplyPiece& /*piece*/, std::string* /*out*/) {}

void MessageFormat::CloseBlock(std::string* out) {
  if (open_) {
    AppendIndexed("content_block_stop", block_, out);
    *out += "}\n\n";
    open_.reset();
  }
}

/// Makes a block of this kind the open one. Every call has a block of its own.
void MessageFormat::Switch(Kind kind,
                           std::string_view id,
                           std::string_view name,
                           std::string* out) {
  const Kind block = kind == Kind::kToolArguments ? Kind::kToolCall : kind;
  if (open_ == block && kind != Kind::kToolCall) {
    return;
  }
  CloseBlock(out);
  ++block_;
  open_ = block;
  AppendIndexed("content_block_start", block_, out);
  *out += R"(,"content_block":)";
  if (block == Kind::kContent) {
    *out += R"({"type":"text","text":""})";
  } else if (block == Kind::kReasoning) {
    *out += R"({"type":"thinking","thinking":"","signature":""})";
  } else {
    *out += R"({"type":"tool_use","id":)";
    AppendQuoted(id, out);
    *out += R"(,"name":)";
    AppendQuoted(name, out);
    *out += R"(,"input":{}})";
  }
  *out += "}\n\n";
}

void MessageFormat::AppendPiece(const ReplyPiece& piece, std::string* out) {
  VisitParts(piece, [&](Kind kind, std::string_view id, std::string_view text) {
    Switch(kind, id, text, out);
    if (kind == Kind::kToolCall) {
      return;
    }
    AppendIndexed("content_block_delta", block_, out);
    *out += kind == Kind::kContent     ? R"(,"delta":{"type":"text_delta","text":)"
            : kind == Kind::kReasoning ? R"(,"delta":{"type":"thinking_delta","thinking":)"
                                       : R"(,"delta":{"type":"input_json_delta","partial_json":)";
    AppendQuoted(text, out);
    *out += "}}\n\n";
  });
  if (piece.finish != leader::FinishReason::kNone) {
    CloseBlock(out);
    Remember(piece);
  }
}

void MessageFormat::AppendEnd(const Usage& usage, bool /*usage_asked*/, std::string* out) {
  *out += "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{";
  AppendStop(usage.completion_tokens, out);
  *out += R"(},"usage":)";
  AppendUsage(usage, out);
  *out += "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
}

void MessageFormat::AppendFailure(const Error& error, std::string* out) {
  *out += "event: error\ndata: " + AnthropicErrorBody(error, {}) + "\n\n";
}

std::string MessageFormat::FailureBody(const Error& error) const {
  return AnthropicErrorBody(error, {});
}

void MessageFormat::AppendFull(std::span<const ReplyPiece> choices,
                               const Usage& usage,
                               std::string* out) {
  const ReplyPiece& piece = choices.front();
  Remember(piece);
  *out += '{';
  *out += head_;
  *out += R"(,"content":[)";
  for (const Block& block : BlocksOf(piece)) {
    if (out->back() != '[') {
      *out += ',';
    }
    if (block.kind == Kind::kContent) {
      *out += R"({"type":"text","text":)";
      AppendQuoted(block.text, out);
    } else if (block.kind == Kind::kReasoning) {
      *out += R"({"type":"thinking","thinking":)";
      AppendQuoted(block.text, out);
      *out += R"(,"signature":"")";
    } else {
      *out += R"({"type":"tool_use","id":)";
      AppendQuoted(block.id, out);
      *out += R"(,"name":)";
      AppendQuoted(block.name, out);
      *out += R"(,"input":)";
      AppendArguments(block.text, out);
    }
    *out += '}';
  }
  *out += "],";
  AppendStop(usage.completion_tokens, out);
  *out += R"(,"usage":)";
  AppendUsage(usage, out);
  *out += '}';
}

}  // namespace inferd::api
