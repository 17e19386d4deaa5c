// SPDX-License-Identifier: Apache-2.0
// The lines of a batch: JSONL, each a request with an id of its own. All of it is checked before
// the first line runs.
#pragma once

#include "api/batch/batch_record.h"
#include "inferd/result.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace inferd::api {

struct BatchInputLimits {
  std::size_t max_lines = 50'000;  // OpenAI's
  std::size_t max_line_bytes = 32U << 20;
  std::size_t max_errors = 100;  // then reading ends
};

struct BatchLine {
  std::string custom_id;
  std::string url;
  std::size_t at = 0;  // of its text in the input
  std::size_t size = 0;
};

struct BatchInput {
  std::vector<BatchLine> lines;
  std::vector<BatchError> errors;  // empty: all lines may run
};

bool IsGoodStatus(int status);

/// Paths that lines may call.
bool IsBatchUrl(std::string_view url);
/// "/v1/chat/completions, ..."
std::string BatchUrls();

/// Every line calls `endpoint`; empty: each what it likes. `text` outlives the use of the lines.
BatchInput ReadBatchInput(std::string_view text,
                          std::string_view endpoint,
                          const BatchInputLimits& limits);

/// The body of a line that was read before, as JSON text.
std::string BodyOf(std::string_view line);

/// The ids of the answers in a file that was being written, and whether each was a good one. What
/// follows the last whole answer (a write that was cut) is not counted; `whole_bytes` says where
/// that is.
std::unordered_map<std::string, bool> AnsweredIds(std::string_view text, std::size_t* whole_bytes);

}  // namespace inferd::api
