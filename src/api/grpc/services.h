// SPDX-License-Identifier: Apache-2.0
// The services of the gRPC port. Each is made once; what it is given outlives it.
#pragma once

#include "api/grpc/grpc_shared.h"

#include <grpcpp/impl/service_type.h>

#include <memory>

namespace inferd::api {

/// Whose health grpc.health.v1 knows.
inline constexpr const char* kServiceNames[] = {
    "inferd.v1.Inference", "inference.GRPCInferenceService", "vllm.grpc.engine.VllmEngine"};

/// inferd.v1.Inference (proto/inferd/v1/inference.proto).
std::unique_ptr<grpc::Service> MakeInferenceService(GrpcShared* shared);
/// inference.GRPCInferenceService (proto/kserve/grpc_predict_v2.proto).
std::unique_ptr<grpc::Service> MakeKserveService(GrpcShared* shared);
/// vllm.grpc.engine.VllmEngine (proto/vllm/vllm_engine.proto).
std::unique_ptr<grpc::Service> MakeVllmService(GrpcShared* shared);

}  // namespace inferd::api
