// SPDX-License-Identifier: Apache-2.0
#include "api/core/asker.h"

#include "base/error.h"

namespace inferd::api {

Error RepeatedHeader(std::string_view name) {
  return InvalidArgument("{} is there more than once; send it once", name);
}

Result<std::string_view> AgreedTenant(
    const std::array<std::optional<std::string_view>, kTenantHeaders.size()>& values) {
  std::optional<std::string_view> agreed;
  for (const auto& value : values) {
    if (value && agreed && *value != *agreed) {
      return InvalidArgument(
          "{}, {} and {} name different tenants; send one of them, and let the gateway remove what "
          "its clients send",
          kTenantHeaders[0],
          kTenantHeaders[1],
          kTenantHeaders[2]);
    }
    agreed = value ? value : agreed;
  }
  return agreed.value_or("");
}

Fault FaultOfGate(const Error& error, const tenant::Refusal& refusal) {
  Fault fault{.retry_after_ms = refusal.retry_after_ms};
  switch (error.code()) {
    case Code::kUnauthenticated:
      fault.code = "invalid_api_key";
      break;
    case Code::kResourceExhausted:
      fault.code = "rate_limit_exceeded";
      fault.reason = "quota";
      break;
    case Code::kInvalidArgument:
      fault.code = "invalid_tenant";
      break;
    default:
      fault.code = "insufficient_permissions";
  }
  return fault;
}

}  // namespace inferd::api
