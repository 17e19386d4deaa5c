// SPDX-License-Identifier: Apache-2.0
// What chats and completions tell of single tokens and of time, in vLLM's and llama.cpp's shapes.
#pragma once

#include "api/core/reply_format.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace inferd::api {

/// What a reply's format is told of its request.
struct OpenAiReply {
  std::string id;
  std::string model;
  std::int64_t created_s = 0;
  bool logprobs = false;  // the client asked for them
  bool tools = false;     // chats: it offered some, so the reply may have no content
  ReplyReport report;
  std::shared_ptr<const text::Tokenizer> tokenizer;

  /// How logprobs call a token: its text, or "token_id:<id>".
  std::string TokenName(std::int32_t token) const;
};

/// ,"name":[1,2]
void AppendIds(std::string_view name, std::span<const std::int32_t> ids, std::string* out);
/// ,"prompt_logprobs":[null,{"<id>":{"logprob":..,"rank":..,"decoded_token":..},..},..]: each with
/// the prompt's own token first.
void AppendPromptScores(const PromptReport& prompt,
                        const text::Tokenizer& tokenizer,
                        std::string* out);
/// ,"timings":{..}
void AppendTimings(const Usage& usage, std::string* out);

}  // namespace inferd::api
