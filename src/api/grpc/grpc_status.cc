// SPDX-License-Identifier: Apache-2.0
#include "api/grpc/grpc_status.h"

#include "inferd/v1/status.pb.h"

#include <algorithm>
#include <string>

namespace inferd::api {
namespace {

constexpr std::size_t kMessageBytes = 2000;  // trailers have to fit into a client's limit of 8 KiB
constexpr std::size_t kValueBytes = 200;
constexpr std::int64_t kBusyMs = 1'000;  // as HTTP's Retry-After where nothing is known
constexpr std::int64_t kNotReadyMs = 5'000;
constexpr std::int64_t kMsPerSecond = 1'000;
constexpr std::int32_t kNsPerMs = 1'000'000;

/// Metadata holds printable ASCII only.
std::string Printable(const std::string& text) {
  std::string out = text.substr(0, kValueBytes);
  std::replace_if(out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

/// grpc-status-details-bin, as clients with googleapis' messages read it.
std::string DetailsOf(const Error& error, const std::string& message, std::int64_t retry_ms) {
  v1::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(retry_ms / kMsPerSecond);
  retry.mutable_retry_delay()->set_nanos(static_cast<std::int32_t>(retry_ms % kMsPerSecond) *
                                         kNsPerMs);
  v1::StatusDetails details;
  details.set_code(static_cast<std::int32_t>(error.code()));
  details.set_message(message);
  google::protobuf::Any* const any = details.add_details();
  any->set_type_url("type.googleapis.com/google.rpc.RetryInfo");
  any->set_value(retry.SerializeAsString());
  return details.SerializeAsString();
}

}  // namespace

std::int64_t RetryMs(const Error& error, const Fault& fault) {
  if (fault.retry_after_ms != 0) {
    return std::max<std::int64_t>(fault.retry_after_ms, 0);
  }
  return error.code() == Code::kResourceExhausted ? kBusyMs
         : error.code() == Code::kUnavailable     ? kNotReadyMs
                                                  : 0;
}

grpc::Status ToStatus(const Error& error, const Fault& fault, grpc::ServerContextBase* context) {
  if (!fault.param.empty()) {
    context->AddTrailingMetadata("inferd-param", Printable(fault.param));
  }
  if (!fault.code.empty()) {
    context->AddTrailingMetadata("inferd-code", Printable(fault.code));
  }
  if (!fault.reason.empty()) {
    context->AddTrailingMetadata(kRejectedReasonKey, std::string(fault.reason));
  }
  std::string message(PublicMessage(error));
  if (message.size() > kMessageBytes) {
    std::size_t end = kMessageBytes;
    while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xc0) == 0x80) {
      --end;  // not within a character
    }
    message.resize(end);
  }
  const auto code = static_cast<grpc::StatusCode>(error.code());
  const std::int64_t retry_ms = RetryMs(error, fault);
  if (retry_ms == 0) {
    return {code, message};
  }
  context->AddTrailingMetadata(kRetryAfterKey, std::to_string(retry_ms));
  return {code, message, DetailsOf(error, message, retry_ms)};
}

}  // namespace inferd::api
