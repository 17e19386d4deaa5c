// SPDX-License-Identifier: Apache-2.0
// Who asks, in the words that HTTP's headers and gRPC's metadata share, and what a client is told
// that the gate turns away.
#pragma once

#include "api/core/error_map.h"
#include "inferd/result.h"
#include "tenant/quota.h"

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace inferd::api {

/// For whom a gateway asks: one header under the names that gateways have for it.
inline constexpr std::array kTenantHeaders = {
    "x-inferd-tenant", "x-tenant", "x-gateway-inference-fairness-id"};
inline constexpr const char* kWeightHeader = "x-inferd-weight";
inline constexpr const char* kObjectiveHeader = "x-gateway-inference-objective";

/// Each of these may be there once: of two, nobody can say which one was meant.
inline constexpr std::array kAskerHeaders = {"authorization",
                                             "x-api-key",
                                             "api-key",
                                             kTenantHeaders[0],
                                             kTenantHeaders[1],
                                             kTenantHeaders[2],
                                             kWeightHeader,
                                             kObjectiveHeader};

/// kInvalidArgument for a header of kAskerHeaders that is there more than once.
Error RepeatedHeader(std::string_view name);

/// The tenant that the headers of kTenantHeaders name, in their order; nullopt: that one is not
/// there; empty: none. When two differ, an empty one too, both, a line each, which the gate takes
/// of no gateway: it sets one of them, and a client could have added another.
std::string AgreedTenant(
    const std::array<std::optional<std::string_view>, kTenantHeaders.size()>& values);

/// What tenant::Gate's error means for the client.
Fault FaultOfGate(const Error& error, const tenant::Refusal& refusal);

}  // namespace inferd::api
