// SPDX-License-Identifier: Apache-2.0
// A server without its front end, for tests: starts a real leader with real worker processes on a
// model of tests/data and collects what it answers.
#pragma once

#include "leader/leader.h"

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace inferd::cluster {

/// Everything one choice of one stream got.
struct Answer {
  std::vector<std::int32_t> tokens;
  std::vector<spec::SampledToken> details;
  std::vector<spec::SampledToken> prompt_logprobs;
  leader::FinishReason finish = leader::FinishReason::kNone;
  std::vector<float> embedding;
  std::int32_t cached_tokens = 0;
  std::string error;
  bool ended = false;
};

/// Thread-safe collector of events.
class Collector : public leader::EventSink {
 public:
  void Publish(std::span<leader::OutputEvent> events) override;
  /// The answer of choice `choice` of slot `slot`, once it has ended or the deadline has passed.
  Answer Wait(std::uint32_t slot, std::int32_t choice = 0, int deadline_s = 60);
  /// Waits until the choice has at least `count` tokens (or has ended).
  std::size_t WaitForTokens(std::uint32_t slot, std::size_t count, int deadline_s = 60);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<std::uint32_t, std::int32_t>, Answer> answers_;
};

spec::ParallelSpec Parallel(int tp, int pp, int ep, int dp = 1);

struct ServerOptions {
  std::string model = "llama";  // a folder of tests/data, or an absolute path
  spec::ParallelSpec parallel;
  std::string device = "cpu";
  spec::CommBackend comm = spec::CommBackend::kAuto;
  std::int32_t max_num_seqs = 16;
  std::int32_t max_num_batched_tokens = 64;
  std::int64_t kv_cache_bytes = 16 << 20;
  std::int64_t step_deadline_ms = 10'000;
  std::int64_t max_waiting = 1024;
  bool prefix_cache = true;
  bool enable_sleep_mode = false;
  std::vector<std::int32_t> eos_ids;  // instead of the model's; none: max_tokens sets the lengths
};

class Server {
 public:
  /// Starts and waits until ready; a failure fails the test and leaves leader() null.
  explicit Server(const ServerOptions& options);
  ~Server();

  leader::Leader* leader() { return leader_.get(); }
  Collector& collector() { return collector_; }

  /// Submits a greedy request; returns its slot.
  std::uint32_t Submit(const std::vector<std::int32_t>& prompt, std::int32_t max_tokens);
  std::uint32_t Submit(leader::GenerateRequest request);
  /// Submit all, wait for all.
  std::vector<Answer> Generate(const std::vector<std::vector<std::int32_t>>& prompts,
                               std::int32_t max_tokens);

  /// Pids of this process's worker children, in the order they were started.
  static std::vector<pid_t> WorkerPids();
  /// KV pages in use over all replicas, after waiting (at most 5 s) for the engine to go idle.
  std::int64_t PagesInUseWhenIdle();

 private:
  Collector collector_;
  std::unique_ptr<leader::Leader> leader_;
  std::uint32_t next_slot_ = 1;
};

/// `count` prompts of random ids below `vocab`, lengths 3..max_length, from a fixed seed.
std::vector<std::vector<std::int32_t>> RandomPrompts(int count,
                                                     int vocab,
                                                     int max_length,
                                                     std::uint64_t seed);

/// Runs this process as a worker: argv of the launcher.
int WorkerMain(int argc, char** argv);

}  // namespace inferd::cluster
