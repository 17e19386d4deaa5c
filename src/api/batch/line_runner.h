// SPDX-License-Identifier: Apache-2.0
// Runs the requests of batches, some at a time, behind all other work: the handlers of HTTP make
// the generations, a GenerationHost runs them, and the answers come back in a queue.
//
// Threads: one that owns the runner calls all of it; the host's thread hands the answers in.
#pragma once

#include "api/core/generation_host.h"
#include "api/core/metrics.h"
#include "api/core/served_model.h"
#include "api/http/endpoint.h"
#include "base/bounded_queue.h"
#include "inferd/result.h"
#include "leader/inference_service.h"
#include "tenant/gate.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

namespace inferd::api {

struct LineRequest {
  std::uint64_t tag = 0;  // names it here; not 0
  std::string url;        // one with a handler
  std::string body;
  std::string owner;
};

struct LineAnswer {
  enum class Kind {
    kAnswered,   // with status and body, also when that is an error
    kPutOff,     // there was no room, or no allowance, before it ran
    kLost,       // the model was lost, or its time in the queue was over
    kCancelled,  // by Cancel or Stop
  };
  std::uint64_t tag = 0;
  Kind kind = Kind::kAnswered;
  int status = 200;
  std::string body;                 // JSON text
  std::string request_id;           // of the log and the ledger
  std::int64_t retry_after_ms = 0;  // with kPutOff: known time until it may work; 0: not known
};

class LineRunner {
 public:
  /// All outlive the runner's Stop. Without `gate` nobody keeps count. Lines are run by `call`.
  LineRunner(std::shared_ptr<const ServedModel> model,
             leader::InferenceService* service,
             Metrics* metrics,
             tenant::Gate* gate,
             std::size_t max_running,
             HandlerCall call = CallHandler);
  ~LineRunner();
  LineRunner(const LineRunner&) = delete;
  LineRunner& operator=(const LineRunner&) = delete;

  /// The model takes work, nothing waits for it, and fewer than max_running lines run: whoever else
  /// asks finds the queue empty.
  bool HasRoom() const;
  std::size_t running() const { return running_.size(); }
  /// Reads, renders and tokenises here; exactly one answer follows.
  void Start(LineRequest line);
  void Cancel(std::uint64_t tag);
  /// Waits for an answer, or until somebody calls Wake.
  std::optional<LineAnswer> Take(std::chrono::milliseconds timeout);
  /// Any thread.
  void Wake();
  /// Ends what runs.
  void Stop();

 private:
  class Running;
  Result<std::unique_ptr<Running>> Prepare(const LineRequest& line, LineAnswer* answer);
  void Put(LineAnswer answer);

  const std::shared_ptr<const ServedModel> model_;
  leader::InferenceService* const service_;
  Metrics* const metrics_;
  tenant::Gate* const gate_;
  const std::size_t max_running_;
  const HandlerCall call_;
  base::BoundedQueue<LineAnswer> answers_;
  std::atomic<bool> woken_{false};  // an empty answer is in the queue
  std::unordered_map<std::uint64_t, GenerationHost::Ticket> running_;  // 0: not with the host
  GenerationHost host_;  // last: its thread uses the rest
};

}  // namespace inferd::api
