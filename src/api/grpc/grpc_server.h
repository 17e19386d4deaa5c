// SPDX-License-Identifier: Apache-2.0
// The gRPC front end: one port with inferd's own services, grpc.health.v1 and reflection.
#pragma once

#include "api/core/metrics.h"
#include "api/core/served_model.h"
#include "api/grpc/grpc_options.h"
#include "inferd/result.h"
#include "leader/inference_service.h"
#include "tenant/gate.h"

#include <cstdint>
#include <memory>

namespace inferd::api {

class RunningRequests;  // http/running_requests.h

/// Start, serve, BeginDrain, Stop. Must be destroyed after the service has stopped calling its
/// sinks, and Stop must come before the service is destroyed. Its calls count in
/// metrics->requests_open.
class GrpcServer {
 public:
  /// Listens and serves. `service`, `metrics`, `gate` and `running` (null: none is shared) outlive
  /// the server. With a gate, every
  /// call but those of health, liveness and reflection needs a key, if the gate has keys.
  static Result<std::unique_ptr<GrpcServer>> Start(const GrpcOptions& options,
                                                   std::shared_ptr<const ServedModel> model,
                                                   leader::InferenceService* service,
                                                   Metrics* metrics,
                                                   tenant::Gate* gate = nullptr,
                                                   RunningRequests* running = nullptr);
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  std::uint16_t port() const;
  /// Any thread: health says NOT_SERVING; work is still taken.
  void BeginLeaving();
  /// Any thread: the same, and new work ends with UNAVAILABLE; accepted work goes on.
  void BeginDrain();
  /// Cancels what runs, closes all connections, joins the threads.
  void Stop();

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace inferd::api
