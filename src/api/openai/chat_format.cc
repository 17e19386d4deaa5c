// SPDX-License-Identifier: Apache-2.0
#include "api/openai/chat_format.h"

#include "api/core/json_writer.h"

#include <utility>
#include <vector>

namespace inferd::api {
namespace {

using Kind = text::OutputDelta::Kind;

/// The deltas of a piece by what they are. Calls stay in their order.
struct Parts {
  std::string content;
  std::string reasoning;
  struct Call {
    std::int32_t index = 0;
    const text::OutputDelta* begin = nullptr;  // null: it began earlier
    std::string arguments;
  };
  std::vector<Call> calls;
};

Parts Sort(const ReplyPiece& piece) {
  Parts parts;
  parts.content = piece.text;
  for (const text::OutputDelta& delta : piece.deltas) {
    if (delta.kind == Kind::kContent) {
      parts.content += delta.text;
    } else if (delta.kind == Kind::kReasoning) {
      parts.reasoning += delta.text;
    } else {
      if (parts.calls.empty() || parts.calls.back().index != delta.call) {
        parts.calls.push_back({.index = delta.call, .begin = nullptr, .arguments = {}});
      }
      if (delta.kind == Kind::kToolCall) {
        parts.calls.back().begin = &delta;
      } else {
        parts.calls.back().arguments += delta.text;
      }
    }
  }
  return parts;
}

/// Under both names that clients know.
void AppendReasoning(std::string_view reasoning, std::string* out) {
  *out += R"("reasoning":)";
  AppendQuoted(reasoning, out);
  *out += R"(,"reasoning_content":)";
  AppendQuoted(reasoning, out);
}

void AppendCalls(const Parts& parts, bool numbered, std::string* out) {
  *out += R"("tool_calls":[)";
  for (std::size_t i = 0; i < parts.calls.size(); ++i) {
    const Parts::Call& call = parts.calls[i];
    *out += i == 0 ? "{" : ",{";
    if (numbered) {
      *out += R"("index":)";
      AppendInt(call.index, out);
      *out += ',';
    }
    if (call.begin != nullptr) {
      *out += R"("id":)";
      AppendQuoted(call.begin->id, out);
      *out += R"(,"type":"function","function":{"name":)";
      AppendQuoted(call.begin->text, out);
      *out += ',';
    } else {
      *out += R"("function":{)";
    }
    *out += R"("arguments":)";
    AppendQuoted(call.arguments, out);
    *out += "}}";
  }
  *out += ']';
}

}  // namespace

ChatFormat::ChatFormat(OpenAiReply reply) : reply_(std::move(reply)) {
  common_ = R"({"id":)";
  AppendQuoted(reply_.id, &common_);
  common_ += R"(,"object":")";
  created_model_ = R"(","created":)";
  AppendInt(reply_.created_s, &created_model_);
  created_model_ += R"(,"model":)";
  AppendQuoted(reply_.model, &created_model_);
  created_model_ += R"(,"choices":[)";
}

void ChatFormat::AppendToken(std::int32_t token, float logprob, std::string* out) const {
  const text::TokenText text = text::MakeTokenText(*reply_.tokenizer, token);
  *out += R"({"token":)";
  AppendQuoted(reply_.report.tokens_as_ids ? reply_.TokenName(token) : text.token, out);
  *out += R"(,"logprob":)";
  AppendLogprob(logprob, out);
  *out += R"(,"bytes":[)";
  for (std::size_t i = 0; i < text.bytes.size(); ++i) {
    if (i > 0) {
      *out += ',';
    }
    AppendInt(text.bytes[i], out);
  }
  *out += ']';
}

void ChatFormat::AppendLogprobs(std::span<const LogprobItem> items, std::string* out) const {
  *out += R"(,"logprobs":)";
  if (!reply_.logprobs) {
    *out += "null";
    return;
  }
  *out += R"({"content":[)";
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) {
      *out += ',';
    }
    AppendToken(items[i].token, items[i].logprob, out);
    *out += R"(,"top_logprobs":[)";
    for (std::size_t k = 0; k < items[i].top.size(); ++k) {
      if (k > 0) {
        *out += ',';
      }
      AppendToken(items[i].top[k].token, items[i].top[k].logprob, out);
      *out += '}';
    }
    *out += "]}";
  }
  *out += R"(],"refusal":null})";
}

void ChatFormat::AppendOpening(const ReplyPiece& piece, std::string* out) {
  *out += "data: ";
  *out += common_;
  *out += "chat.completion.chunk";
  *out += created_model_;
  *out += R"({"index":)";
  AppendInt(piece.index, out);
  *out += R"(,"delta":{"role":"assistant","content":)";
  *out += reply_.tools ? "null" : R"("")";
  *out += R"(},"logprobs":null,"finish_reason":null}])";
  AppendPrompt(piece, out);
  AppendUsage(piece, out);
  *out += "}\n\n";
}

void ChatFormat::AppendDelta(const ReplyPiece& piece, std::string* out) const {
  *out += R"(,"delta":{)";
  if (piece.deltas.empty()) {
    if (!piece.text.empty() || (!piece.logprobs.empty() && !reply_.tools)) {
      *out += R"("content":)";
      AppendQuoted(piece.text, out);
    }
    *out += '}';
    return;
  }
  const Parts parts = Sort(piece);
  std::string_view comma;
  if (!parts.reasoning.empty()) {
    AppendReasoning(parts.reasoning, out);
    comma = ",";
  }
  if (!parts.content.empty()) {
    *out += comma;
    *out += R"("content":)";
    AppendQuoted(parts.content, out);
    comma = ",";
  }
  if (!parts.calls.empty()) {
    *out += comma;
    AppendCalls(parts, true, out);
  }
  *out += '}';
}

void ChatFormat::AppendMessage(const ReplyPiece& choice, std::string* out) const {
  const Parts parts = Sort(choice);
  *out += R"(,"message":{"role":"assistant","content":)";
  if (parts.content.empty() && reply_.tools) {
    *out += "null";
  } else {
    AppendQuoted(parts.content, out);
  }
  *out += R"(,"refusal":null)";
  if (!parts.reasoning.empty()) {
    *out += ',';
    AppendReasoning(parts.reasoning, out);
  }
  if (!parts.calls.empty()) {
    *out += ',';
    AppendCalls(parts, false, out);
  }
  *out += '}';
}

void ChatFormat::AppendPiece(const ReplyPiece& piece, std::string* out) {
  *out += "data: ";
  *out += common_;
  *out += "chat.completion.chunk";
  *out += created_model_;
  *out += R"({"index":)";
  AppendInt(piece.index, out);
  AppendDelta(piece, out);
  if (piece.logprobs.empty()) {
    *out += R"(,"logprobs":null)";
  } else {
    AppendLogprobs(piece.logprobs, out);
  }
  AppendFinish(piece, out);
  AppendTokenIds(piece, out);
  *out += "}]";
  AppendUsage(piece, out);
  *out += "}\n\n";
}

void ChatFormat::AppendTokenIds(const ReplyPiece& piece, std::string* out) const {
  if (reply_.report.token_ids) {
    AppendIds("token_ids", piece.token_ids, out);
  }
}

void ChatFormat::AppendPrompt(const ReplyPiece& piece, std::string* out) const {
  if (piece.prompt == nullptr) {
    return;
  }
  if (piece.prompt->ids_wanted) {
    AppendIds("prompt_token_ids", piece.prompt->ids, out);
  }
  if (piece.prompt->scores_wanted) {
    AppendPromptScores(*piece.prompt, *reply_.tokenizer, out);
  }
}

void ChatFormat::AppendUsage(const ReplyPiece& piece, std::string* out) {
  if (piece.usage != nullptr) {
    *out += R"(,"usage":)";
    AppendUsageObject(*piece.usage, out);
  }
}

void ChatFormat::AppendEnd(const Usage& usage, bool usage_asked, std::string* out) {
  if (usage_asked || reply_.report.timings) {
    *out += "data: ";
    *out += common_;
    *out += "chat.completion.chunk";
    *out += created_model_;
    *out += ']';
    if (usage_asked) {
      *out += R"(,"usage":)";
      AppendUsageObject(usage, out);
    }
    if (reply_.report.timings) {
      AppendTimings(usage, out);
    }
    *out += "}\n\n";
  }
  *out += "data: [DONE]\n\n";
}

void ChatFormat::AppendFull(std::span<const ReplyPiece> choices,
                            const Usage& usage,
                            std::string* out) {
  *out += common_;
  *out += "chat.completion";
  *out += created_model_;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    *out += i == 0 ? R"({"index":)" : R"(,{"index":)";
    AppendInt(choices[i].index, out);
    AppendMessage(choices[i], out);
    AppendLogprobs(choices[i].logprobs, out);
    AppendFinish(choices[i], out);
    AppendTokenIds(choices[i], out);
    *out += '}';
  }
  *out += R"(],"usage":)";
  AppendUsageObject(usage, out);
  if (!choices.empty()) {
    AppendPrompt(choices.front(), out);
  }
  if (reply_.report.timings) {
    AppendTimings(usage, out);
  }
  *out += '}';
}

}  // namespace inferd::api
