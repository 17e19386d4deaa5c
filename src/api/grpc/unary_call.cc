// SPDX-License-Identifier: Apache-2.0
#include "api/grpc/unary_call.h"

#include "api/core/guard.h"
#include "api/core/serving_state.h"
#include "base/log.h"

#include <optional>

namespace inferd::api {
namespace {

grpc::Status Answer(GrpcShared* shared,
                    grpc::CallbackServerContext* context,
                    const AnswerCall& answer,
                    std::string_view method,
                    std::optional<tenant::Scope> scope) {
  Fault fault;
  std::shared_ptr<tenant::Admission> admission;  // holds its place until the answer is made
  if (scope) {
    auto admitted = shared->Admit(*context, *scope, method, &fault);
    if (!admitted.ok()) {
      return ToStatus(admitted.error(), fault, context);
    }
    admission = *std::move(admitted);
  }
  const auto result = Guarded(method, [&] { return answer(shared->Context(admission), &fault); });
  if (!result.ok() && StatusOf(result.error().code()).http_status == 500) {
    log::Failure("api", "gRPC {}: {}", method, result.error().message());
  }
  return result.ok() ? grpc::Status::OK : ToStatus(result.error(), fault, context);
}

}  // namespace

grpc::ServerUnaryReactor* AnswerInline(GrpcShared* shared,
                                       grpc::CallbackServerContext* context,
                                       std::string_view method,
                                       const AnswerCall& answer,
                                       Access access) {
  std::optional<tenant::Scope> scope;
  if (access != Access::kOpen) {
    scope = access == Access::kAdmin ? tenant::Scope::kAdmin : tenant::Scope::kAny;
  }
  auto* const reactor = context->DefaultReactor();
  reactor->Finish(Answer(shared, context, answer, method, scope));
  return reactor;
}

grpc::ServerUnaryReactor* AnswerOnPool(GrpcShared* shared,
                                       grpc::CallbackServerContext* context,
                                       std::string_view method,
                                       RequestPool::Lane lane,
                                       AnswerCall answer) {
  auto record = std::make_shared<CallRecord>(shared, context, method);
  auto* const reactor = context->DefaultReactor();
  auto job = [shared, context, reactor, record, answer = std::move(answer)] {
    // A call that was cancelled while it waited needs no work, only an end.
    if (context->IsCancelled()) {
      return reactor->Finish(grpc::Status(grpc::StatusCode::CANCELLED, ""));
    }
    const grpc::Status status =
        Answer(shared, context, answer, record->method(), tenant::Scope::kInference);
    record->SetCode(static_cast<int>(status.error_code()));
    reactor->Finish(status);
  };
  if (!shared->pool->TryRun(lane, std::move(job))) {
    Fault fault;
    const Error error = TooManyUnread(&fault);
    record->SetCode(static_cast<int>(error.code()));
    reactor->Finish(ToStatus(error, fault, context));
  }
  return reactor;
}

}  // namespace inferd::api
