// SPDX-License-Identifier: Apache-2.0
// ModelStreamInfer: many requests over one stream, each a generation of its own; their answers
// share the stream and are told apart by the request's id.
#pragma once

#include "api/grpc/generation_call.h"
#include "api/grpc/infer_proto.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

namespace inferd::api {

/// Either `full` (whole answer) or `emit` (a stream's pieces) is given.
Result<PreparedCall> PrepareInferCall(const ServerContext& context,
                                      const inference::ModelInferRequest& request,
                                      inference::ModelInferResponse* full,
                                      InferProtoFormat::Emit emit,
                                      Fault* fault);

/// Reads bytes, so that a message that is none is told from the end of the stream.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartInferStream(
    GrpcShared* shared, grpc::CallbackServerContext* context);

}  // namespace inferd::api
