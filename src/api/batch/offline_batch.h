// SPDX-License-Identifier: Apache-2.0
// A batch without a server: requests of one file, answers into another. The answers are gathered
// in OUTPUT.partial, from which a run that was ended goes on, and which becomes OUTPUT at the end.
#pragma once

#include "api/batch/batch_job.h"
#include "api/core/metrics.h"
#include "api/core/served_model.h"
#include "api/http/endpoint.h"
#include "base/file.h"
#include "inferd/result.h"
#include "leader/inference_service.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace inferd::api {

struct OfflineOptions {
  std::string input;
  std::string output;
  bool overwrite = false;
  BatchInputLimits limits = {};
  HandlerCall call = CallHandler;  // how a line is run
};

struct OfflineCounts {
  std::int64_t total = 0;
  std::int64_t completed = 0;
  std::int64_t failed = 0;
};

class OfflineBatch {
 public:
  /// Reads and checks all of the input before anything is loaded.
  static Result<std::unique_ptr<OfflineBatch>> Open(const OfflineOptions& options);

  OfflineCounts counts() const;

  /// Runs what is left, `max_running` lines at a time. `stopped` is asked often; `progress` is told
  /// the counts. kCancelled when it was stopped: what is answered is kept.
  Result<OfflineCounts> Run(std::shared_ptr<const ServedModel> model,
                            leader::InferenceService* service,
                            std::size_t max_running,
                            const std::function<bool()>& stopped,
                            const std::function<void(const OfflineCounts&)>& progress);

 private:
  explicit OfflineBatch(const OfflineOptions& options) : options_(options) {}
  Result<> Finish();

  const OfflineOptions options_;
  std::string partial_;
  base::UniqueFd lock_;
  std::unique_ptr<BatchJob> job_;
  Metrics metrics_;                    // counted, and shown to nobody
  std::unique_ptr<LineRunner> lines_;  // kept until the service has stopped
};

}  // namespace inferd::api
