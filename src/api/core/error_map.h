// SPDX-License-Identifier: Apache-2.0
// The one table from error codes to HTTP statuses and OpenAI error types, and the body of an
// error answer.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

struct ErrorStatus {
  int http_status;
  std::string_view type;  // OpenAI's `error.type`
};

ErrorStatus StatusOf(Code code);

/// What a client is told about an error besides code and message.
struct Fault {
  std::string param = {};  // path of the offending field ("messages[0].content"); empty: null
  std::string code = {};   // OpenAI's `error.code` ("model_not_found"); empty: null
  std::int64_t retry_after_ms = 0;  // known time until it may work; 0: not known; -1: never
  /// Why a request was refused before any work was done for it, one word for programs, static:
  /// those of leader::Refusal, quota and queue_deadline; empty: it was not.
  std::string_view reason = {};
  /// With --strict-requests: takes the paths of the fields that the handler looked at.
  std::vector<std::string>* asked = nullptr;
};

/// What a client is told: the error's message, but of a failure inside only that there was one.
std::string_view PublicMessage(const Error& error);

/// {"error":{"message","type","code","param"}}
std::string ErrorBody(const Error& error, const Fault& fault);

}  // namespace inferd::api
