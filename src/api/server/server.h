// SPDX-License-Identifier: Apache-2.0
// The HTTP front end: I/O threads, request threads and the routing between them.
#pragma once

#include "api/batch/batch_runner.h"
#include "api/batch/batch_store.h"
#include "api/core/context.h"
#include "api/core/limits.h"
#include "api/core/metrics.h"
#include "api/core/served_model.h"
#include "api/files/file_store.h"
#include "api/http/endpoint.h"
#include "api/http/http_options.h"
#include "api/http/io_thread.h"
#include "api/http/listener.h"
#include "api/http/request_pool.h"
#include "api/http/running_requests.h"
#include "api/responses/response_store.h"
#include "base/file.h"
#include "inferd/result.h"
#include "leader/inference_service.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace inferd::api {

/// What a server with files and batches keeps them in.
struct StorageOptions {
  std::string folder;      // locked while the server runs
  FileStoreOptions files;  // its folder is under that one
  BatchOptions batches;
};

/// Start, serve, BeginDrain, Stop. Must be destroyed after the service has stopped calling its
/// sinks, and Stop must come before the service is destroyed.
class Server : public Dispatcher {
 public:
  /// Listens and starts the threads. `service` outlives Stop(). Without `gate` everybody is served
  /// and nobody keeps count; without `storage` there are no files and no batches.
  static Result<std::unique_ptr<Server>> Start(const HttpOptions& options,
                                               std::shared_ptr<const ServedModel> model,
                                               leader::InferenceService* service,
                                               std::shared_ptr<tenant::Gate> gate = nullptr,
                                               std::optional<StorageOptions> storage = {});
  ~Server() override;

  std::uint16_t port() const { return port_; }
  /// Any thread: readiness goes false and connections close after their answer; work is still
  /// taken, for the routers that have not seen it yet.
  void BeginLeaving() { draining_.store(true, std::memory_order_release); }
  /// Any thread: the same, and new work is answered 503; accepted work goes on.
  void BeginDrain();
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
         leader::InferenceService* service,
         std::shared_ptr<tenant::Gate> gate);
  void Dispatch(IoThread* io, RequestKey key, HttpRequest request) override;
  LongBody AdmitLongBody(const HttpRequest& head) override;
  Result<std::shared_ptr<tenant::Admission>> Admit(const HttpRequest& request,
                                                   const Endpoint* endpoint,
                                                   tenant::Refusal* refusal);
  RequestPool::Job MakeJob(IoThread* io,
                           RequestKey key,
                           const Endpoint& endpoint,
                           ServerContext context,
                           HttpRequest request,
                           std::string more);
  bool HostAllowed(std::string_view host) const;
  Result<Listener> Listen();
  Result<> OpenStorage(StorageOptions storage);

  HttpOptions options_;
  std::shared_ptr<const ServedModel> model_;
  leader::InferenceService* service_;
  std::shared_ptr<tenant::Gate> gate_;
  Metrics metrics_;
  ResponseStore responses_{limits::kStoredResponses, limits::kStoredResponseBytes};
  RunningRequests running_;
  std::shared_ptr<std::atomic<int>> long_bodies_ = std::make_shared<std::atomic<int>>(0);
  base::UniqueFd storage_lock_;
  std::unique_ptr<FileStore> files_;  // null: none are kept, nor batches
  std::unique_ptr<BatchStore> batch_store_;
  std::unique_ptr<BatchRunner> batches_;
  const std::int64_t started_ns_;
  std::uint16_t port_ = 0;
  Listener unix_listener_;             // with options_.uds
  std::atomic<bool> draining_{false};  // not ready any more
  std::atomic<bool> refusing_{false};  // takes no new work
  std::vector<std::unique_ptr<IoThread>> io_threads_;
  std::unique_ptr<RequestPool> pool_;
  std::vector<std::jthread> threads_;
  bool stopped_ = false;
};

}  // namespace inferd::api
