// SPDX-License-Identifier: Apache-2.0
// Errors as gRPC statuses. Code numbers are gRPC's; what a client may be told is the one table's
// business (core/error_map.h).
#pragma once

#include "api/core/error_map.h"
#include "inferd/result.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <cstdint>

namespace inferd::api {

inline constexpr const char* kRejectedReasonKey = "x-inferd-rejected-reason";
inline constexpr const char* kRetryAfterKey = "retry-after-ms";

/// When to come back; 0: that does not help, or nobody knows.
std::int64_t RetryMs(const Error& error, const Fault& fault);

/// The status a call ends with; the parameter at fault and OpenAI's error code become trailing
/// metadata `inferd-param` and `inferd-code`. What is refused for the load or because the server is
/// not ready carries when to come back: `retry-after-ms`, and google.rpc.RetryInfo among the
/// status' details. Call before Finish.
grpc::Status ToStatus(const Error& error, const Fault& fault, grpc::ServerContextBase* context);

}  // namespace inferd::api
