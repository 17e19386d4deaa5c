// SPDX-License-Identifier: Apache-2.0
#include "api/openai/token_report.h"

#include "api/core/json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace inferd::api {
namespace {

void AppendScore(const text::Tokenizer& tokenizer,
                 std::int32_t token,
                 float logprob,
                 std::int64_t rank,
                 std::string* out) {
  *out += '"';
  AppendInt(token, out);
  *out += R"(":{"logprob":)";
  AppendLogprob(logprob, out);
  *out += R"(,"rank":)";
  AppendInt(rank, out);
  *out += R"(,"decoded_token":)";
  AppendQuoted(text::MakeTokenText(tokenizer, token).token, out);
  *out += '}';
}

}  // namespace

std::string OpenAiReply::TokenName(std::int32_t token) const {
  return report.tokens_as_ids ? fmt::format("token_id:{}", token)
                              : text::MakeTokenText(*tokenizer, token).token;
}

void AppendIds(std::string_view name, std::span<const std::int32_t> ids, std::string* out) {
  *out += R"(,")";
  *out += name;
  *out += R"(":[)";
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) {
      *out += ',';
    }
    AppendInt(ids[i], out);
  }
  *out += ']';
}

void AppendPromptScores(const PromptReport& prompt,
                        const text::Tokenizer& tokenizer,
                        std::string* out) {
  *out += R"(,"prompt_logprobs":[null)";
  for (const spec::SampledToken& score : prompt.scores) {
    *out += ",{";
    AppendScore(tokenizer, score.token, score.logprob, score.rank, out);
    for (std::size_t i = 0; i < score.top.size(); ++i) {
      if (score.top[i].token != score.token) {
        *out += ',';
        AppendScore(tokenizer,
                    score.top[i].token,
                    score.top[i].logprob,
                    static_cast<std::int64_t>(i) + 1,
                    out);
      }
    }
    *out += '}';
  }
  *out += ']';
}

void AppendTimings(const Usage& usage, std::string* out) {
  const auto part = [&](const char* name, std::int64_t count, std::int64_t ns) {
    const double ms = static_cast<double>(ns) * 1e-6;
    const auto tokens = static_cast<double>(count);
    fmt::format_to(std::back_inserter(*out),
                   R"("{0}_n":{1},"{0}_ms":{2:.3f},"{0}_per_token_ms":{3:.3f},)"
                   R"("{0}_per_second":{4:.3f})",
                   name,
                   count,
                   ms,
                   count > 0 ? ms / tokens : 0,
                   ns > 0 ? tokens / ms * 1e3 : 0);
  };
  *out += R"(,"timings":{"cache_n":)";
  AppendInt(usage.cached_tokens, out);
  *out += ',';
  part("prompt", usage.prompt_tokens - usage.cached_tokens, usage.prompt_ns);
  *out += ',';
  part("predicted", usage.completion_tokens, usage.completion_ns);
  *out += '}';
}

}  // namespace inferd::api
