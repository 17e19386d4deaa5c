// SPDX-License-Identifier: Apache-2.0
// What every handler may look at, whatever its protocol.
#pragma once

#include "api/core/metrics.h"
#include "api/core/request_span.h"
#include "api/core/served_model.h"
#include "leader/inference_service.h"
#include "tenant/gate.h"

#include <cstdint>
#include <memory>
#include <string>

namespace inferd::api {

class BatchRunner;      // batch/batch_runner.h
class FileStore;        // files/file_store.h
class ResponseStore;    // responses/response_store.h
class RunningRequests;  // http/running_requests.h

/// All of it is thread-safe and outlives every request.
struct ServerContext {
  const ServedModel& model;
  leader::InferenceService& service;
  Metrics& metrics;
  ResponseStore* responses = nullptr;  // null: nothing is stored
  RunningRequests* running = nullptr;  // null: nothing can be aborted
  FileStore* files = nullptr;          // null: no files are kept, and no batches
  BatchRunner* batches = nullptr;      // null with files
  /// Batch work: goes behind everything else.
  bool background = false;
  bool draining = false;
  std::int64_t started_ns = 0;  // of this server
  std::int64_t arrived_ns = 0;  // of this request
  std::string session = {};     // of this request: X-Session-Id
  /// Who asks, and what they may use; null: nobody keeps count. The generation takes a share and
  /// settles it.
  std::shared_ptr<tenant::Admission> admission = nullptr;
  /// Of this request; null: it is not traced. The generation shares it and fills it in.
  std::shared_ptr<OpenSpan> span = nullptr;
};

}  // namespace inferd::api
