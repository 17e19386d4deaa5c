// SPDX-License-Identifier: Apache-2.0
#include "api/batch/line_handlers.h"

#include "api/batch/batch_input.h"
#include "api/openai/endpoints.h"
#include "api/responses/endpoints.h"

#include <string>

namespace inferd::api {
namespace {

struct LineHandler {
  std::string_view url;
  Handler handler;
};

/// OpenAI's four, and vLLM's additions.
constexpr LineHandler kHandlers[] = {{"/v1/chat/completions", ChatCompletions},
                                     {"/v1/completions", Completions},
                                     {"/v1/embeddings", Embeddings},
                                     {"/v1/responses", CreateResponse},
                                     {"/v1/score", Score},
                                     {"/score", Score},
                                     {"/v1/rerank", Rerank},
                                     {"/rerank", Rerank}};

}  // namespace

Handler HandlerOf(std::string_view url) {
  for (const LineHandler& one : kHandlers) {
    if (one.url == url) {
      return one.handler;
    }
  }
  return nullptr;
}

std::string BatchUrls() {
  std::string urls;
  for (const LineHandler& one : kHandlers) {
    urls += (urls.empty() ? "" : ", ") + std::string(one.url);
  }
  return urls;
}

}  // namespace inferd::api
