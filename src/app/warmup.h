// SPDX-License-Identifier: Apache-2.0
// --warmup-file: requests that are run once the model is loaded and before the server is ready, so
// that the first clients find prefixes cached and memory touched.
#pragma once

#include "api/batch/line_runner.h"
#include "api/core/metrics.h"
#include "api/core/served_model.h"
#include "inferd/config.h"
#include "inferd/result.h"
#include "leader/inference_service.h"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace inferd::app {

/// The service as front ends see it: still loading until Open(). Outlives them; any thread.
class WarmingService final : public leader::InferenceService {
 public:
  /// `service` outlives this. `warm`: nothing is to be waited for.
  WarmingService(leader::InferenceService* service, bool warm) : service_(service), warm_(warm) {}

  void Open() { warm_.store(true); }

  Result<> Submit(leader::GenerateRequest request, leader::Refusal* refusal) override;
  void Cancel(leader::StreamId stream, std::int32_t choice) override;
  Result<> Sleep(int level, leader::SleepMode mode) override {
    return service_->Sleep(level, mode);
  }
  Result<> WakeUp() override { return service_->WakeUp(); }
  int sleep_level() const override { return service_->sleep_level(); }
  leader::Phase phase() const override;
  std::optional<leader::Stall> stall() const override { return service_->stall(); }
  leader::LoadProgress load_progress() const override { return service_->load_progress(); }
  std::vector<leader::ReplicaStats> stats() const override { return service_->stats(); }
  const spec::ModelSpec& model() const override { return service_->model(); }
  std::int64_t max_model_len() const override { return service_->max_model_len(); }
  std::int64_t max_choices() const override { return service_->max_choices(); }

 private:
  leader::InferenceService* const service_;
  std::atomic<bool> warm_;
};

/// The requests of a warm-up file, in the format of a batch (docs/batches.md), `text` being all of
/// it. Read before the model is loaded, so that a bad file is told at once.
struct WarmupRequests {
  struct Line {
    std::string id;
    std::string url;
    std::string body;  // JSON text
  };
  std::vector<Line> lines;
};

/// No lines when `path` is empty. kInvalidArgument names the line that is wrong.
Result<WarmupRequests> ReadWarmupFile(const std::string& path);

/// Runs them. Destroyed only when the service has stopped: until then it may hand over what was
/// cancelled.
class Warmup {
 public:
  Warmup(std::shared_ptr<const api::ServedModel> model, leader::InferenceService* service);

  /// All of them, some at a time; waits until they have ended, `timeout_s` has passed or `give_up`
  /// says so. A request that fails is logged: a server that is not warm is better than none. Call
  /// once.
  void Run(const WarmupRequests& requests,
           std::int64_t timeout_s,
           const std::function<bool()>& give_up);

 private:
  api::Metrics metrics_;  // of no server: what clients are told has not begun
  api::LineRunner runner_;
};

}  // namespace inferd::app
