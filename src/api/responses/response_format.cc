// SPDX-License-Identifier: Apache-2.0
#include "api/responses/response_format.h"

#include "api/core/error_map.h"
#include "api/core/generate_params.h"
#include "api/core/json_writer.h"

#include <utility>

namespace inferd::api {
namespace {

using Kind = text::OutputDelta::Kind;

void AppendMember(std::string_view name, std::string_view value, std::string* out) {
  *out += ",\"";
  *out += name;
  *out += "\":";
  AppendQuoted(value, out);
}

void AppendUsage(const Usage& usage, std::string* out) {
  *out += R"({"input_tokens":)";
  AppendInt(usage.prompt_tokens, out);
  *out += R"(,"input_tokens_details":{"cached_tokens":)";
  AppendInt(usage.cached_tokens, out);
  *out += R"(},"output_tokens":)";
  AppendInt(usage.completion_tokens, out);
  *out += R"(,"output_tokens_details":{"reasoning_tokens":)";
  AppendInt(usage.reasoning_tokens, out);
  *out += R"(},"total_tokens":)";
  AppendInt(usage.prompt_tokens + usage.completion_tokens, out);
  *out += '}';
}

/// Name of the events that carry the text of an item.
std::string_view TextEvent(Kind kind) {
  return kind == Kind::kContent     ? "response.output_text."
         : kind == Kind::kReasoning ? "response.reasoning_text."
                                    : "response.function_call_arguments.";
}

}  // namespace

ResponseFormat::ResponseFormat(ResponseRequest request, ResponseStore* store)
    : request_(std::move(request)), store_(store) {}

ResponseFormat::~ResponseFormat() {
  if (running_) {
    CloseItem("incomplete");
    store_->Update(request_.id, Response("cancelled", nullptr, nullptr), false);
  }
}

/// The response object as it stands.
std::string ResponseFormat::Response(std::string_view status,
                                     const Usage* usage,
                                     const Error* error) const {
  std::string out = R"({"id":)";
  AppendQuoted(request_.id, &out);
  out += R"(,"object":"response","created_at":)";
  AppendInt(request_.created_s, &out);
  AppendMember("status", status, &out);
  out += R"(,"background":false,"error":)";
  if (error == nullptr) {
    out += "null";
  } else {
    const bool busy = error->code() == Code::kResourceExhausted;
    out += busy ? R"({"code":"rate_limit_exceeded")" : R"({"code":"server_error")";
    AppendMember("message", PublicMessage(*error), &out);
    out += '}';
  }
  out += status == "incomplete" ? R"(,"incomplete_details":{"reason":"max_output_tokens"},)"
                                : R"(,"incomplete_details":null,)";
  out += request_.echo;
  out += R"(,"output":[)";
  out += items_;
  out += R"(],"usage":)";
  if (usage == nullptr) {
    out += "null";
  } else {
    AppendUsage(*usage, &out);
  }
  out += '}';
  return out;
}

std::string_view ResponseFormat::Status() const {
  return finish_ == leader::FinishReason::kStop     ? "completed"
         : finish_ == leader::FinishReason::kLength ? "incomplete"
                                                    : "cancelled";
}

// ---- items

void ResponseFormat::OpenItem(Kind kind, std::string_view call_id, std::string_view name) {
  Item item;
  item.kind = kind == Kind::kToolArguments ? Kind::kToolCall : kind;
  item.id = NewId(item.kind == Kind::kContent     ? "msg_"
                  : item.kind == Kind::kReasoning ? "rs_"
                                                  : "fc_");
  if (kind == Kind::kToolCall) {
    item.call_id = call_id;
    item.name = name;
  }
  open_ = std::move(item);
}

void ResponseFormat::CloseItem(std::string_view status) {
  if (!open_) {
    return;
  }
  if (num_items_ > 0) {
    items_ += ',';
  }
  AppendItem(status, true, &items_);
  ++num_items_;
  open_.reset();
}

void ResponseFormat::AppendPart(bool filled, std::string* out) const {
  const std::string_view text = filled ? std::string_view(open_->text) : "";
  if (open_->kind == Kind::kReasoning) {
    *out += R"({"type":"reasoning_text","text":)";
    AppendQuoted(text, out);
  } else {
    *out += R"({"type":"output_text","annotations":[],"logprobs":[],"text":)";
    AppendQuoted(text, out);
  }
  *out += '}';
}

void ResponseFormat::AppendItem(std::string_view status, bool filled, std::string* out) const {
  *out += R"({"id":)";
  AppendQuoted(open_->id, out);
  if (open_->kind == Kind::kToolCall) {
    AppendMember("type", "function_call", out);
    AppendMember("status", status, out);
    AppendMember("call_id", open_->call_id, out);
    AppendMember("name", open_->name, out);
    AppendMember("arguments", filled ? std::string_view(open_->text) : "", out);
    *out += '}';
    return;
  }
  if (open_->kind == Kind::kReasoning) {
    AppendMember("type", "reasoning", out);
    AppendMember("status", status, out);
    *out += R"(,"summary":[])";
  } else {
    AppendMember("type", "message", out);
    AppendMember("status", status, out);
    AppendMember("role", "assistant", out);
  }
  *out += R"(,"content":[)";
  if (filled) {
    AppendPart(true, out);
  }
  *out += "]}";
}

// ---- stream

void ResponseFormat::BeginEvent(std::string_view type, std::string* out) {
  *out += "event: ";
  *out += type;
  *out += "\ndata: {\"type\":\"";
  *out += type;
  *out += R"(","sequence_number":)";
  AppendInt(sequence_++, out);
}

/// An event that speaks of the open item.
void ResponseFormat::BeginItemEvent(std::string_view type, std::string* out) {
  BeginEvent(type, out);
  AppendMember("item_id", open_->id, out);
  *out += R"(,"output_index":)";
  AppendInt(num_items_, out);
  if (open_->kind != Kind::kToolCall) {
    *out += R"(,"content_index":0)";
  }
}

void ResponseFormat::AppendStart(const Usage& /*usage*/, std::string* out) {
  const std::string response = Response("in_progress", nullptr, nullptr);
  for (const std::string_view type : {"response.created", "response.in_progress"}) {
    BeginEvent(type, out);
    *out += R"(,"response":)";
    *out += response;
    *out += "}\n\n";
  }
  if (store_ != nullptr) {
    running_ = true;
    store_->Put(request_.id,
                {.body = response,
                 .input_items = request_.input_items,
                 .running = true,
                 .owner = request_.owner});
  }
}

void ResponseFormat::AppendOpening(const ReplyPiece& /*piece*/, std::string* /*out*/) {}

/// Makes an item of this kind the open one. Every call is an item of its own.
void ResponseFormat::OpenItemInStream(Kind kind,
                                      std::string_view call_id,
                                      std::string_view name,
                                      std::string* out) {
  const Kind item = kind == Kind::kToolArguments ? Kind::kToolCall : kind;
  if (open_ && open_->kind == item && kind != Kind::kToolCall) {
    return;
  }
  CloseItemInStream("completed", out);
  OpenItem(kind, call_id, name);
  BeginEvent("response.output_item.added", out);
  *out += R"(,"output_index":)";
  AppendInt(num_items_, out);
  *out += R"(,"item":)";
  AppendItem("in_progress", false, out);
  *out += "}\n\n";
  if (item != Kind::kToolCall) {
    BeginItemEvent("response.content_part.added", out);
    *out += R"(,"part":)";
    AppendPart(false, out);
    *out += "}\n\n";
  }
}

void ResponseFormat::CloseItemInStream(std::string_view status, std::string* out) {
  if (!open_) {
    return;
  }
  BeginItemEvent(std::string(TextEvent(open_->kind)) + "done", out);
  if (open_->kind == Kind::kToolCall) {
    AppendMember("name", open_->name, out);
    AppendMember("arguments", open_->text, out);
  } else {
    AppendMember("text", open_->text, out);
    *out += open_->kind == Kind::kContent ? R"(,"logprobs":[])" : "";
  }
  *out += "}\n\n";
  if (open_->kind != Kind::kToolCall) {
    BeginItemEvent("response.content_part.done", out);
    *out += R"(,"part":)";
    AppendPart(true, out);
    *out += "}\n\n";
  }
  BeginEvent("response.output_item.done", out);
  *out += R"(,"output_index":)";
  AppendInt(num_items_, out);
  *out += R"(,"item":)";
  AppendItem(status, true, out);
  *out += "}\n\n";
  CloseItem(status);
}

void ResponseFormat::AppendPiece(const ReplyPiece& piece, std::string* out) {
  VisitParts(piece, [&](Kind kind, std::string_view id, std::string_view text) {
    OpenItemInStream(kind, id, text, out);
    if (kind == Kind::kToolCall) {
      return;
    }
    open_->text += text;
    BeginItemEvent(std::string(TextEvent(open_->kind)) + "delta", out);
    AppendMember("delta", text, out);
    *out += kind == Kind::kContent ? R"(,"logprobs":[])" : "";
    *out += "}\n\n";
  });
  if (piece.finish != leader::FinishReason::kNone) {
    finish_ = piece.finish;
    if (!open_ && num_items_ == 0) {
      OpenItemInStream(Kind::kContent, "", "", out);  // clients look for a message
    }
    CloseItemInStream(Status() == "completed" ? "completed" : "incomplete", out);
  }
}

void ResponseFormat::AppendEnd(const Usage& usage, bool /*usage_asked*/, std::string* out) {
  const std::string response = Response(Status(), &usage, nullptr);
  BeginEvent(Status() == "completed" ? "response.completed" : "response.incomplete", out);
  *out += R"(,"response":)";
  *out += response;
  *out += "}\n\n";
  if (std::exchange(running_, false)) {
    store_->Update(request_.id, response, false);
  }
}

void ResponseFormat::AppendFailure(const Error& error, std::string* out) {
  CloseItem("incomplete");
  const std::string response = Response("failed", nullptr, &error);
  BeginEvent("response.failed", out);
  *out += R"(,"response":)";
  *out += response;
  *out += "}\n\n";
  if (std::exchange(running_, false)) {
    store_->Update(request_.id, response, false);
  }
}

// ---- whole answers

void ResponseFormat::AppendFull(std::span<const ReplyPiece> choices,
                                const Usage& usage,
                                std::string* out) {
  const ReplyPiece& piece = choices.front();
  finish_ = piece.finish;
  VisitParts(piece, [&](Kind kind, std::string_view id, std::string_view text) {
    const Kind item = kind == Kind::kToolArguments ? Kind::kToolCall : kind;
    if (!open_ || open_->kind != item || kind == Kind::kToolCall) {
      CloseItem("completed");
      OpenItem(kind, id, text);
    }
    if (kind != Kind::kToolCall) {
      open_->text += text;
    }
  });
  if (!open_) {
    OpenItem(Kind::kContent, "", "");
  }
  CloseItem(Status() == "completed" ? "completed" : "incomplete");
  const std::string response = Response(Status(), &usage, nullptr);
  *out += response;
  if (store_ != nullptr) {
    store_->Put(request_.id,
                {.body = response,
                 .input_items = request_.input_items,
                 .running = false,
                 .owner = request_.owner});
  }
}

}  // namespace inferd::api
