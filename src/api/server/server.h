// SPDX-License-Identifier: Apache-2.0
// The HTTP front end: I/O threads, request threads and the routing between them.
#pragma once

#include "api/core/limits.h"
#include "api/core/metrics.h"
#include "api/core/served_model.h"
#include "api/http/http_options.h"
#include "api/http/io_thread.h"
#include "api/http/request_pool.h"
#include "api/http/running_requests.h"
#include "api/responses/response_store.h"
#include "inferd/result.h"
#include "leader/inference_service.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace inferd::api {

/// Start, serve, BeginDrain, Stop. Must be destroyed after the service has stopped calling its
/// sinks, and Stop must come before the service is destroyed.
class Server : public Dispatcher {
 public:
  /// Listens and starts the threads. `service` outlives Stop().
  static Result<std::unique_ptr<Server>> Start(const HttpOptions& options,
                                               std::shared_ptr<const ServedModel> model,
                                               leader::InferenceService* service);
  ~Server() override;

  std::uint16_t port() const { return port_; }
  /// Any thread: readiness goes false, new work is answered 503; accepted work goes on.
  void BeginDrain() { draining_.store(true, std::memory_order_release); }
  bool draining() const override { return draining_.load(std::memory_order_acquire); }
  RunningRequests* running() override { return &running_; }
  /// Requests that are read, run or still being sent.
  std::int64_t open_requests() const {
    return metrics_.requests_open.load(std::memory_order_acquire);
  }
  /// Cancels what runs, closes all connections, joins the threads.
  void Stop();

  const Metrics& metrics() const { return metrics_; }
  /// For front ends beside this one, whose requests count as this server's.
  Metrics* mutable_metrics() { return &metrics_; }

 private:
  Server(const HttpOptions& options,
         std::shared_ptr<const ServedModel> model,
         leader::InferenceService* service);
  void Dispatch(IoThread* io, RequestKey key, HttpRequest request) override;
  bool HostAllowed(std::string_view host) const;

  HttpOptions options_;
  std::shared_ptr<const ServedModel> model_;
  leader::InferenceService* service_;
  Metrics metrics_;
  ResponseStore responses_{limits::kStoredResponses, limits::kStoredResponseBytes};
  RunningRequests running_;
  const std::int64_t started_ns_;
  std::uint16_t port_ = 0;
  std::atomic<bool> draining_{false};
  std::vector<std::unique_ptr<IoThread>> io_threads_;
  std::unique_ptr<RequestPool> pool_;
  std::vector<std::jthread> threads_;
  bool stopped_ = false;
};

}  // namespace inferd::api
