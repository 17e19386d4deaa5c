// SPDX-License-Identifier: Apache-2.0
// Plain text or TLS for the gRPC port.
#pragma once

#include "api/grpc/grpc_options.h"
#include "inferd/result.h"

#include <memory>

namespace grpc {
class ServerCredentials;
}  // namespace grpc

namespace inferd::api {

/// TLS (1.2 or 1.3) when `options` names a certificate. Refuses files that cannot be read; that
/// they belong together is checked by the HTTP port, which has the same ones.
Result<std::shared_ptr<grpc::ServerCredentials>> MakeGrpcCredentials(const GrpcOptions& options);

}  // namespace inferd::api
