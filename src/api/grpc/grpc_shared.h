// SPDX-License-Identifier: Apache-2.0
// What all calls of the gRPC port share, and what each one passes before its handler runs.
#pragma once

#include "api/core/context.h"
#include "api/core/error_map.h"
#include "api/core/generation_host.h"
#include "api/grpc/grpc_options.h"
#include "api/http/request_pool.h"
#include "api/http/running_requests.h"
#include "inferd/result.h"
#include "tenant/gate.h"

#include <grpcpp/server_context.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace inferd::api {

/// All of it is thread-safe and outlives every call.
struct GrpcShared {
  GrpcOptions options;
  std::shared_ptr<const ServedModel> model;
  leader::InferenceService& service;
  Metrics& metrics;
  std::unique_ptr<GenerationHost> host;
  std::unique_ptr<RequestPool> pool;
  tenant::Gate* gate = nullptr;  // null: everybody may ask
  RunningRequests& running;
  std::atomic<bool> leaving{false};   // not ready any more
  std::atomic<bool> draining{false};  // takes no new work

  /// The context of a call that begins now. What generates takes its share of the admission and
  /// settles it.
  ServerContext Context(std::shared_ptr<tenant::Admission> admission = nullptr) const {
    return {.model = *model,
            .service = service,
            .metrics = metrics,
            .draining = draining.load(std::memory_order_acquire),
            .arrived_ns = NowNs(),
            .admission = std::move(admission)};
  }
  bool ready() const {
    return service.phase() == leader::Phase::kReady && !leaving.load(std::memory_order_acquire);
  }
  static std::int64_t NowNs();

  /// Who asks, by metadata `authorization: Bearer KEY` or `x-api-key: KEY`; null: nobody keeps
  /// count. UNAUTHENTICATED, PERMISSION_DENIED or RESOURCE_EXHAUSTED otherwise.
  Result<std::shared_ptr<tenant::Admission>> Admit(const grpc::ServerContextBase& context,
                                                   tenant::Scope scope,
                                                   std::string_view method,
                                                   Fault* fault) const;
};

/// Counts the call as open and logs it at its end. One per call, owned by it.
class CallRecord {
 public:
  CallRecord(GrpcShared* shared, grpc::ServerContextBase* context, std::string_view method);
  ~CallRecord();
  CallRecord(const CallRecord&) = delete;
  CallRecord& operator=(const CallRecord&) = delete;

  /// The client's `x-request-id`, cut to a bound; empty: it gave none.
  const std::string& request_id() const { return request_id_; }
  /// `x-session-id`; empty: none, or too long.
  const std::string& session() const { return session_; }
  const std::string& method() const { return method_; }
  /// Of the call; null: it is not traced. Taken once, by who makes its context.
  std::shared_ptr<OpenSpan> BeginSpan(const grpc::ServerContextBase& context) const;
  /// Held until the call ends.
  void SetAdmission(std::shared_ptr<tenant::Admission> admission) {
    admission_ = std::move(admission);
  }
  const std::shared_ptr<tenant::Admission>& admission() const { return admission_; }
  /// The status the call ends with, for the log.
  void SetCode(int code) { code_ = code; }

 private:
  GrpcShared* shared_;
  std::string method_;
  std::string request_id_;
  std::string session_;
  std::shared_ptr<tenant::Admission> admission_;
  std::int64_t began_ns_;
  int code_ = 1;  // CANCELLED until it is set
};

}  // namespace inferd::api
