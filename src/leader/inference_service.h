// SPDX-License-Identifier: Apache-2.0
// What the front end may ask of the leader: submit, cancel, and look at the state. Token ids in,
// token ids out; text is the caller's business.
#pragma once

#include "inferd/result.h"
#include "spec/model_spec.h"
#include "spec/sampling_params.h"
#include "spec/step.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::leader {

/// Names a stream of the front end: I/O thread, slot there, and how often the slot was used before.
/// The engine side never touches a connection; a stale generation is dropped by the I/O thread.
struct StreamId {
  std::uint32_t io = 0;
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  friend bool operator==(const StreamId&, const StreamId&) = default;
};

enum class FinishReason : std::uint8_t { kNone, kStop, kLength, kCancelled, kError };

/// One thing that happened to one choice of one stream.
struct OutputEvent {
  StreamId stream;
  std::int32_t choice = 0;  // 0..n-1
  /// Generated token, or nullopt for an event that only ends the choice or only carries prompt
  /// logprobs.
  std::optional<spec::SampledToken> token;
  FinishReason finish = FinishReason::kNone;  // with the last event of the choice
  std::int32_t stop_token = -1;  // the end token, when finish is kStop (it is also `token`)
  std::int32_t cached_tokens =
      0;                         // prompt tokens served from the prefix cache; with the first event
  std::int64_t admitted_ns = 0;  // steady clock: when the choice left the queue; 0: it never did
  std::vector<spec::SampledToken> prompt_logprobs;  // complete, with the choice's first event
  std::vector<float> embedding;  // with the end of a request for one: [hidden], not normalised
  std::optional<Error> error;    // with kError
};

/// Receives all events of one step that belong to one I/O thread, in order. Called on an engine
/// thread; must not block.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void Publish(std::span<OutputEvent> events) = 0;
};

/// Says which tokens an output may take, token by token. A request carries one that has taken none;
/// each of its choices gets a clone.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  /// A fresh one. Thread-safe; may take some milliseconds.
  virtual Result<std::unique_ptr<TokenConstraint>> Clone() const = 0;
  // The rest: one thread at a time, not always the same one.
  /// Sets bit i % 32 of word i / 32 for each token i that may come next, clears the others. At
  /// least one must be left; end tokens are allowed exactly when the output may end. An error ends
  /// the choice.
  virtual Result<> FillMask(std::span<std::uint32_t> words) = 0;
  /// Takes the next token of the output; an error ends the choice.
  virtual Result<> Accept(std::int32_t token) = 0;
};

struct GenerateRequest {
  StreamId stream;
  EventSink* sink = nullptr;  // outlives the request
  std::vector<std::int32_t> prompt;
  spec::SamplingParams sampling;
  std::int32_t n = 1;  // choices; choice i uses seed + i
  std::int32_t max_tokens = 0;
  bool embed = false;  // the prompt's embedding is asked for; max_tokens is 0
  std::int32_t min_tokens = 0;
  bool ignore_eos = false;                            // without a constraint
  std::int32_t num_speculative_tokens = -1;           // guessed ahead; -1: the server's default
  std::shared_ptr<const TokenConstraint> constraint;  // null: any token
  std::vector<std::int32_t> stop_token_ids;           // beside the model's own end ids
  std::int32_t priority = 0;                          // lower goes first
  std::string tenant;                                 // whose key it is; empty: no keys
  std::string user;         // the tenant's end user: who are served in turn at equal priority
  std::int32_t weight = 1;  // of the tenant's share, at least 1
  std::string session;      // goes where its siblings went, while that is not too busy; empty: none
  std::int64_t queue_deadline_ms = 0;  // 0: the server's default
  std::string cache_salt;              // part of the prefix cache's key, with the tenant
};

enum class Phase : std::uint8_t {
  kStarting,
  kLoading,
  kReady,
  kRecovering,
  kDraining,
  kStopped,
  kFailed,
  kAsleep
};

/// What becomes of requests that run when the server is put to sleep.
enum class SleepMode : std::uint8_t {
  kAbort,  // they end with an error
  kWait,   // they end first, for kSleepWaitMs at most
  kKeep    // they go on after waking, from where they were
};
inline constexpr std::int64_t kSleepWaitMs = 300'000;

struct LoadProgress {
  std::int64_t bytes_done = 0;
  std::int64_t bytes_total = 0;
};

/// Per replica, as of the last step.
struct ReplicaStats {
  Phase phase = Phase::kStarting;
  std::int64_t running = 0, waiting = 0;
  std::int32_t page_tokens = 0;
  std::string_view kv_dtype = {};  // as spec::KvDtypeName
  std::int64_t kv_pages_total = 0, kv_pages_used = 0, kv_pages_cached = 0;
  std::uint64_t prompt_tokens = 0, generated_tokens = 0;
  std::uint64_t prefix_queries = 0, prefix_hits = 0;  // tokens
  std::uint64_t preemptions = 0, steps = 0, restarts = 0;
  std::uint64_t drafts = 0, draft_tokens = 0, accepted_tokens = 0;  // guesses ahead
  /// Batches of KV events handed to the publisher, and those it had no room for
  /// (--kv-events-config).
  std::uint64_t kv_event_batches = 0, kv_event_batches_dropped = 0;
  std::int64_t waiting_tokens = 0;     // of prompts without their first token
  std::int64_t predicted_wait_ms = 0;  // of a newcomer without a tenant at priority 0
  std::uint64_t finished_stop = 0, finished_length = 0, finished_cancelled = 0, finished_error = 0;
};

/// Of a request that was refused for the load or the server's state.
struct Refusal {
  std::int64_t retry_after_ms = 0;  // until it is likely to be taken; 0: not known
  /// One static word: queue_full, tokens, predicted_wait, draining, loading, asleep or failed.
  std::string_view reason = {};
};

/// Of a replica that gets nowhere although it has work, or whose engine thread does not turn.
struct Stall {
  std::int64_t replica = 0;
  std::int64_t ms = 0;  // how long
};

class InferenceService {
 public:
  virtual ~InferenceService() = default;

  /// Thread-safe, does not block. Errors come at once: kResourceExhausted (the load: 429),
  /// kUnavailable (not ready, draining: 503), kInvalidArgument (prompt and max_tokens do not fit,
  /// with the numbers). After success events follow until every choice has finished.
  /// `refusal`, if not null, is filled in with the first two.
  virtual Result<> Submit(GenerateRequest request, Refusal* refusal) = 0;
  /// Thread-safe. Ends the choice (or all with choice -1) within one step; no further events are
  /// promised.
  virtual void Cancel(StreamId stream, std::int32_t choice) = 0;

  /// Refuses requests, lets go of the KV cache (level 1) and also of the weights (level 2), and
  /// returns when the memory of all ranks is free. Blocks, with a deadline: for a thread that may
  /// wait. kNotFound: sleeping is not enabled; kFailedPrecondition: somebody else does the same or
  /// the opposite at this time; kUnavailable: not ready; kDeadlineExceeded: it goes on.
  virtual Result<> Sleep(int level, SleepMode mode) = 0;
  /// Returns when all replicas serve again; errors as of Sleep.
  virtual Result<> WakeUp() = 0;
  /// 0: awake, or on the way there.
  virtual int sleep_level() const = 0;

  virtual Phase phase() const = 0;
  /// The replica that has stood still for longest, if it is for too long; never while one loads or
  /// sleeps. Thread-safe; reads atomics only.
  virtual std::optional<Stall> stall() const = 0;
  virtual LoadProgress load_progress() const = 0;
  virtual std::vector<ReplicaStats> stats() const = 0;
  virtual const spec::ModelSpec& model() const = 0;
  virtual std::int64_t max_model_len() const = 0;
  /// Choices that may be running or queued at once: a request for more can never be taken.
  virtual std::int64_t max_choices() const = 0;
};

}  // namespace inferd::leader
