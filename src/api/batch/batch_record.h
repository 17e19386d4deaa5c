// SPDX-License-Identifier: Apache-2.0
// A batch as it is kept: plain data, its form on disk and the object that clients see.
#pragma once

#include "api/core/batch_state.h"
#include "inferd/result.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

/// Why a batch failed; with a line of its input, from 1, or 0.
struct BatchError {
  std::string code;
  std::string message;
  std::string param;
  std::int64_t line = 0;
};

/// Times are unix seconds, 0: not yet.
struct BatchRecord {
  std::string id;
  std::string owner;
  std::string endpoint;
  std::string input_file_id;
  std::string metadata = "null";  // as JSON
  std::int64_t output_expiry_s = 0;
  BatchState state = BatchState::kValidating;
  /// What it becomes when the output is in place: kCompleted, kExpired, kCancelled or kFailed.
  BatchState ending = BatchState::kCompleted;
  std::int64_t created_at = 0, expires_at = 0, in_progress_at = 0, finalizing_at = 0;
  std::int64_t completed_at = 0, failed_at = 0, expired_at = 0;
  std::int64_t cancelling_at = 0, cancelled_at = 0;
  std::int64_t total = 0, completed = 0, failed = 0;  // lines
  std::vector<BatchError> errors;
  /// Chosen with the batch, so that a file is made once however often the making is begun; shown
  /// once it is there.
  std::string output_file_id, error_file_id;
  bool has_output = false, has_errors = false;
  std::int64_t order = 0;  // of creation
};

std::string BatchToText(const BatchRecord& record);
Result<BatchRecord> BatchFromText(const std::string& text);

/// The batch object of OpenAI's API.
nlohmann::ordered_json BatchObject(const BatchRecord& record);

}  // namespace inferd::api
