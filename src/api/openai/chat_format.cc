// SPDX-License-Identifier: Apache-2.0
#include "api/openai/chat_format.h"

#include "api/core/json_writer.h"

#include <utility>

namespace inferd::api {

ChatFormat::ChatFormat(std::string_view id,
                       std::string_view model,
                       std::int64_t created_s,
                       bool logprobs,
                       std::shared_ptr<const text::Tokenizer> tokenizer)
    : id_(id), logprobs_(logprobs), tokenizer_(std::move(tokenizer)) {
  common_ = R"({"id":)";
  AppendQuoted(id, &common_);
  common_ += R"(,"object":")";
  created_model_ = R"(","created":)";
  AppendInt(created_s, &created_model_);
  created_model_ += R"(,"model":)";
  AppendQuoted(model, &created_model_);
  created_model_ += R"(,"choices":[)";
}

void ChatFormat::AppendToken(std::int32_t token, float logprob, std::string* out) const {
  const text::TokenText text = text::MakeTokenText(*tokenizer_, token);
  *out += R"({"token":)";
  AppendQuoted(text.token, out);
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
  if (!logprobs_) {
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

void ChatFormat::AppendOpening(std::int32_t index, std::string* out) {
  *out += "data: ";
  *out += common_;
  *out += "chat.completion.chunk";
  *out += created_model_;
  *out += R"({"index":)";
  AppendInt(index, out);
  *out += R"(,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})";
  *out += "\n\n";
}

void ChatFormat::AppendPiece(const ReplyPiece& piece, std::string* out) {
  *out += "data: ";
  *out += common_;
  *out += "chat.completion.chunk";
  *out += created_model_;
  *out += R"({"index":)";
  AppendInt(piece.index, out);
  if (piece.text.empty() && piece.logprobs.empty()) {
    *out += R"(,"delta":{})";
  } else {
    *out += R"(,"delta":{"content":)";
    AppendQuoted(piece.text, out);
    *out += '}';
  }
  if (piece.logprobs.empty()) {
    *out += R"(,"logprobs":null)";
  } else {
    AppendLogprobs(piece.logprobs, out);
  }
  AppendFinish(piece, out);
  *out += "}]}\n\n";
}

void ChatFormat::AppendEnd(const Usage& usage, bool usage_asked, std::string* out) {
  if (usage_asked) {
    *out += "data: ";
    *out += common_;
    *out += "chat.completion.chunk";
    *out += created_model_;
    *out += R"(],"usage":)";
    AppendUsageObject(usage, out);
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
    *out += R"(,"message":{"role":"assistant","content":)";
    AppendQuoted(choices[i].text, out);
    *out += R"(,"refusal":null})";
    AppendLogprobs(choices[i].logprobs, out);
    AppendFinish(choices[i], out);
    *out += '}';
  }
  *out += R"(],"usage":)";
  AppendUsageObject(usage, out);
  *out += '}';
}

}  // namespace inferd::api
