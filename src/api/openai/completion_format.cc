// SPDX-License-Identifier: Apache-2.0
#include "api/openai/completion_format.h"

#include "api/core/json_writer.h"

#include <algorithm>
#include <utility>

namespace inferd::api {

CompletionFormat::CompletionFormat(OpenAiReply reply) : reply_(std::move(reply)) {
  common_ = R"({"id":)";
  AppendQuoted(reply_.id, &common_);
  common_ += R"(,"object":"text_completion","created":)";
  AppendInt(reply_.created_s, &common_);
  common_ += R"(,"model":)";
  AppendQuoted(reply_.model, &common_);
  common_ += R"(,"choices":[)";
}

void CompletionFormat::AppendTop(const LogprobItem& item, std::string* out) const {
  if (!item.known) {
    *out += "null";
    return;
  }
  // A JSON object by token text, best first. Tokens that read alike (parts of characters) can be
  // shown once only; the chosen token comes with the best ones even when it is not among them.
  std::vector<std::string> shown;
  const auto add = [&](std::int32_t token, float logprob) {
    std::string text = reply_.TokenName(token);
    if (std::find(shown.begin(), shown.end(), text) != shown.end()) {
      return;
    }
    if (!shown.empty()) {
      *out += ',';
    }
    AppendQuoted(text, out);
    *out += ':';
    AppendLogprob(logprob, out);
    shown.push_back(std::move(text));
  };
  *out += '{';
  for (const auto& top : item.top) {
    add(top.token, top.logprob);
  }
  add(item.token, item.logprob);
  *out += '}';
}

void CompletionFormat::AppendLogprobs(std::span<const LogprobItem> items, std::string* out) const {
  const auto list = [&](std::string_view name, auto&& append) {
    *out += name;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) {
        *out += ',';
      }
      append(items[i]);
    }
    *out += ']';
  };
  list(R"({"tokens":[)",
       [&](const LogprobItem& item) { AppendQuoted(reply_.TokenName(item.token), out); });
  list(R"(,"token_logprobs":[)", [&](const LogprobItem& item) {
    if (item.known) {
      AppendLogprob(item.logprob, out);
    } else {
      *out += "null";
    }
  });
  list(R"(,"top_logprobs":[)", [&](const LogprobItem& item) { AppendTop(item, out); });
  list(R"(,"text_offset":[)", [&](const LogprobItem& item) { AppendInt(item.text_offset, out); });
  *out += '}';
}

void CompletionFormat::AppendChoice(const ReplyPiece& piece, std::string* out) const {
  *out += R"({"index":)";
  AppendInt(piece.index, out);
  *out += R"(,"text":)";
  AppendQuoted(piece.text, out);
  *out += R"(,"logprobs":)";
  if (reply_.logprobs) {
    AppendLogprobs(piece.logprobs, out);
  } else {
    *out += "null";
  }
  AppendFinish(piece, out);
  if (reply_.report.token_ids) {
    AppendIds("token_ids", piece.token_ids, out);
  }
  if (piece.prompt != nullptr && piece.prompt->ids_wanted) {
    AppendIds("prompt_token_ids", piece.prompt->ids, out);
  }
  if (piece.prompt != nullptr && piece.prompt->scores_wanted) {
    AppendPromptScores(*piece.prompt, *reply_.tokenizer, out);
  }
  *out += '}';
}

// A completion's stream has no opening of its own: what it would tell goes with the first piece.
void CompletionFormat::AppendOpening(const ReplyPiece& piece, std::string* /*out*/) {
  if (piece.prompt != nullptr) {
    prompts_[piece.index] = piece.prompt;
  }
}

void CompletionFormat::AppendPiece(const ReplyPiece& piece, std::string* out) {
  ReplyPiece whole = piece;
  if (const auto prompt = prompts_.find(piece.index); prompt != prompts_.end()) {
    whole.prompt = prompt->second;
    prompts_.erase(prompt);
  }
  *out += "data: ";
  *out += common_;
  AppendChoice(whole, out);
  *out += ']';
  if (piece.usage != nullptr) {
    *out += R"(,"usage":)";
    AppendUsageObject(*piece.usage, out);
  }
  *out += "}\n\n";
}

void CompletionFormat::AppendEnd(const Usage& usage, bool usage_asked, std::string* out) {
  if (usage_asked || reply_.report.timings) {
    *out += "data: ";
    *out += common_;
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

void CompletionFormat::AppendFull(std::span<const ReplyPiece> choices,
                                  const Usage& usage,
                                  std::string* out) {
  *out += common_;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) {
      *out += ',';
    }
    AppendChoice(choices[i], out);
  }
  *out += R"(],"usage":)";
  AppendUsageObject(usage, out);
  if (reply_.report.timings) {
    AppendTimings(usage, out);
  }
  *out += '}';
}

}  // namespace inferd::api
