// SPDX-License-Identifier: Apache-2.0
// Unary calls: one that generates, and one that a request thread answers by itself.
#pragma once

#include "api/grpc/generation_call.h"
#include "api/grpc/grpc_status.h"

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

namespace inferd::api {

class UnaryCall final : public GenerationCall, public grpc::ServerUnaryReactor {
 public:
  using GenerationCall::GenerationCall;

  /// The format that `prepare` makes fills the call's response.
  static grpc::ServerUnaryReactor* Start(GrpcShared* shared,
                                         grpc::CallbackServerContext* context,
                                         std::string_view method,
                                         PrepareCall prepare) {
    auto call = std::make_shared<UnaryCall>(shared, context, method);
    call->Begin(std::move(prepare));
    return call.get();
  }

 private:
  void EndCall(const grpc::Status& status) override { this->Finish(status); }
  void OnCancel() override { OnCancelled(); }
  void OnDone() override { Done(); }
};

/// Work that needs no generation; fills the response it has captured. Place::kInline ones only
/// read atomics.
using AnswerCall = std::function<Result<>(const ServerContext&, Fault*)>;

/// Whether a call needs a key where keys are kept, and of which scope. Open ones tell only whether
/// the server is up; the admin's touch what is others'.
enum class Access { kKey, kAdmin, kOpen };

/// Answers on this thread.
grpc::ServerUnaryReactor* AnswerInline(GrpcShared* shared,
                                       grpc::CallbackServerContext* context,
                                       std::string_view method,
                                       const AnswerCall& answer,
                                       Access access = Access::kKey);
/// Answers on a request thread of the given lane.
grpc::ServerUnaryReactor* AnswerOnPool(GrpcShared* shared,
                                       grpc::CallbackServerContext* context,
                                       std::string_view method,
                                       RequestPool::Lane lane,
                                       AnswerCall answer);

}  // namespace inferd::api
