// SPDX-License-Identifier: Apache-2.0
// Carries batches through their states: checks the input, runs the lines, puts the output in place.
// One thread owns the jobs; one batch of each owner runs at a time, and owners take turns.
//
// Everything that must outlive the process is on disk before it is acted on, so a server that was
// killed goes on where it was.
#pragma once

#include "api/batch/batch_input.h"
#include "api/batch/batch_store.h"
#include "api/batch/line_runner.h"
#include "api/files/file_store.h"
#include "base/file.h"
#include "inferd/result.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace inferd::api {

struct BatchOptions {
  std::size_t max_running = 8;  // lines at once, of all batches
  BatchInputLimits input;
  std::int64_t window_s = 24 * 3600;              // until a batch expires
  std::function<std::int64_t()> now_s = nullptr;  // unix seconds; null: the system's
};

class BatchRunner {
 public:
  /// All outlive the runner, `lines` but until Stop.
  BatchRunner(BatchOptions options, BatchStore* store, FileStore* files, Metrics* metrics);
  ~BatchRunner();
  BatchRunner(const BatchRunner&) = delete;
  BatchRunner& operator=(const BatchRunner&) = delete;

  /// Takes up what is unfinished, and begins.
  void Start(std::unique_ptr<LineRunner> lines);
  /// Any thread: no line is begun any more. Those that run may end until Stop.
  void BeginDrain();
  /// Ends what runs; it is run again by the next server of this folder.
  void Stop();

  // ---- Any thread.
  const BatchStore& store() const { return *store_; }
  std::int64_t now_s() const;
  /// A new batch of owner, endpoint, input and metadata; the rest is filled in.
  Result<BatchRecord> Create(BatchRecord record);
  /// kFailedPrecondition when it is over already.
  Result<BatchRecord> Cancel(std::string_view owner, std::string_view id);

 private:
  struct Active;
  struct Opening;

  void Run();
  void TakeUp();
  void Begin(const BatchRecord& record);
  void ReadOn();
  Result<> Open(BatchRecord record, BatchInput input, base::MappedFile text);
  void FailUnread(const std::string& id, const Error& error);
  void Fail(const std::string& id, std::vector<BatchError> errors);
  void Dispatch();
  Active* NextToRun(std::int64_t now_ms);
  void OnAnswer(LineAnswer answer);
  void EndWhatIsOver();
  Result<> TryEnd(Active* active, BatchState ending);
  Result<> KeepFile(const BatchRecord& record, const std::string& id, const std::string& path);
  void Housekeep();

  const BatchOptions options_;
  BatchStore* const store_;
  FileStore* const files_;
  Metrics* const metrics_;
  std::unique_ptr<LineRunner> lines_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> stop_{false};
  std::atomic<bool> changed_{true};  // a batch was made or cancelled

  // The thread's own.
  std::unique_ptr<Opening> opening_;  // null: none
  std::vector<std::unique_ptr<Active>> active_;
  std::size_t turn_ = 0;  // in active_
  std::uint64_t next_tag_ = 1;
  std::int64_t housekept_ms_ = 0;
  std::thread thread_;
};

}  // namespace inferd::api
