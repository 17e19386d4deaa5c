// SPDX-License-Identifier: Apache-2.0
#include "api/core/asker.h"

#include "base/error.h"

#include <fmt/format.h>

namespace inferd::api {

Error RepeatedHeader(std::string_view name) {
  return InvalidArgument("{} is there more than once; send it once", name);
}

std::string AgreedTenant(
    const std::array<std::optional<std::string_view>, kTenantHeaders.size()>& values) {
  std::optional<std::string> agreed;
  for (const auto& value : values) {
    if (value && agreed && *value != *agreed) {
      return fmt::format("{}\n{}", *agreed, *value);
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
