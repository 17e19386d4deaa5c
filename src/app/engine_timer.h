// SPDX-License-Identifier: Apache-2.0
// Times generations of a running leader, for `inferd bench`: the whole engine loop (scheduler,
// control stream, ranks), without HTTP and without text.
#pragma once

#include "inferd/result.h"
#include "leader/inference_service.h"

#include <cstdint>
#include <functional>
#include <memory>

namespace inferd::app {

/// What one measurement saw. Times are of the steady clock.
struct EngineTiming {
  double seconds = 0;       // of the measured window
  double tokens_per_s = 0;  // prompt tokens (prefill) or new tokens of all streams (decode)
  double gap_p50_ms = 0;    // between two tokens of one stream
  double gap_p95_ms = 0;
  double gap_max_ms = 0;
};

/// Prompts are pseudo-random token ids, new ones for each call, so that no cache helps. One thread
/// calls it; `service` outlives it, and must be ready before something is timed.
class EngineTimer {
 public:
  /// `give_up` is asked a few times a second; a measurement then ends with kCancelled. One that
  /// makes no progress for `stall_deadline_ms` (for each begun 8,192 tokens of a prompt, while it
  /// is read) ends with kDeadlineExceeded. What was then begun runs on and tells this object, which
  /// is therefore destroyed after the service has stopped.
  EngineTimer(leader::InferenceService* service,
              std::int64_t stall_deadline_ms,
              std::function<bool()> give_up);
  ~EngineTimer();
  EngineTimer(const EngineTimer&) = delete;
  EngineTimer& operator=(const EngineTimer&) = delete;

  /// From submitting a prompt of `tokens` to its first new token.
  Result<EngineTiming> Prefill(std::int64_t tokens);
  /// New tokens that a stream of Decode may make: its share of the window, and before that while
  /// the last stream's prompt is still being read.
  static std::int64_t DecodeTokens(std::int64_t streams,
                                   std::int64_t context,
                                   std::int64_t tokens,
                                   std::int64_t chunk);
  /// `streams` greedy generations after prompts of `context` tokens each: from the moment when all
  /// of them generate until the last has made `tokens` more. `chunk` is the most tokens of a step,
  /// which says how long the first streams must wait for the last.
  Result<EngineTiming> Decode(std::int64_t streams,
                              std::int64_t context,
                              std::int64_t tokens,
                              std::int64_t chunk);

 private:
  class Sink;

  Result<> Submit(std::int64_t streams, std::int64_t context, std::int64_t max_tokens);
  /// Until each stream of what was submitted last has a token, after prompts of `context` tokens.
  Result<> WaitForFirst(std::int64_t context);
  /// Until no generation is left, and no step, so that the next measurement has the machine to
  /// itself.
  Result<> Drain(std::int64_t streams);

  leader::InferenceService* const service_;
  const std::int64_t stall_deadline_ms_;
  const std::function<bool()> give_up_;
  const std::unique_ptr<Sink> sink_;
  std::uint64_t round_ = 0;  // the streams' generation
};

}  // namespace inferd::app
