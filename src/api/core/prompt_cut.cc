// SPDX-License-Identifier: Apache-2.0
#include "api/core/prompt_cut.h"

#include <algorithm>

namespace inferd::api {

Result<std::optional<std::int64_t>> ParsePromptCut(const ServerContext& context,
                                                   const Fields& fields,
                                                   std::int64_t reserved) {
  INFERD_ASSIGN(auto keep, fields.Int(limits::kTruncatePromptTokens));
  if (!keep) {
    return keep;
  }
  if (*keep == 0) {
    return FieldError(fields.fault(),
                      fields.Path(limits::kTruncatePromptTokens.name),
                      "{} is 0, which leaves no prompt; give the number of last tokens to keep, or "
                      "-1 for what fits",
                      fields.Path(limits::kTruncatePromptTokens.name));
  }
  const std::int64_t room = context.service.max_model_len() - reserved;
  return std::optional(*keep < 0 ? std::max<std::int64_t>(room, 1) : *keep);
}

void CutPrompt(std::int64_t keep, std::int32_t bos, std::vector<std::int32_t>* ids) {
  const auto size = static_cast<std::int64_t>(ids->size());
  if (size <= keep) {
    return;
  }
  // The model has never seen a text without its beginning-of-text token.
  const std::int64_t head = bos >= 0 && ids->front() == bos && keep > 1 ? 1 : 0;
  ids->erase(ids->begin() + head, ids->begin() + head + (size - keep));
}

}  // namespace inferd::api
