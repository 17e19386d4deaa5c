// SPDX-License-Identifier: Apache-2.0
// The lines of a batch: JSONL, each a request with an id of its own. All of it is checked before
// the first line runs.
#pragma once

#include "api/batch/batch_record.h"
#include "api/core/limits.h"
#include "inferd/result.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace inferd::api {

struct BatchInputLimits {
  std::size_t max_lines = limits::kBatchLines;
  std::size_t max_line_bytes = limits::kBatchLineBytes;
  std::size_t max_errors = limits::kBatchErrors;
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

/// Reads an input piece by piece, so that whoever reads can do other things in between. Every line
/// calls `endpoint`; empty: each what it likes. `text` outlives the reader and the use of the
/// lines.
class BatchInputReader {
 public:
  BatchInputReader(std::string_view text,
                   std::string_view endpoint,
                   const BatchInputLimits& limits);

  /// Reads lines until they have about this many bytes; true: that was all.
  bool ReadOn(std::size_t bytes);
  /// Once all is read.
  BatchInput Take() { return std::move(input_); }

 private:
  bool done() const { return at_ >= text_.size() || input_.errors.size() >= limits_.max_errors; }
  void ReadLineAt(std::size_t start, std::string_view line);
  void Refuse(std::string code, std::string message, std::string param = "");

  const std::string_view text_;
  const std::string endpoint_;
  const BatchInputLimits limits_;
  BatchInput input_;
  std::unordered_set<std::string> ids_;
  std::size_t at_ = 0;
  std::int64_t number_ = 0;  // of the last line read
};

/// All of it at once.
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
