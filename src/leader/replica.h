// SPDX-License-Identifier: Apache-2.0
// Replica: one engine thread that owns the scheduler and the ranks of one copy of the model, drives
// the step loop, and brings the ranks back after a fault.
#pragma once

#include "base/clock.h"
#include "engine/backlog.h"
#include "engine/prefix_hasher.h"
#include "engine/scheduler.h"
#include "inferd/result.h"
#include "leader/inference_service.h"
#include "leader/kv_event_publisher.h"
#include "leader/kv_event_recorder.h"
#include "leader/mailbox.h"
#include "leader/mask_maker.h"
#include "leader/rank_set.h"
#include "leader/sequence_table.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

namespace inferd::leader {

/// How long who waits for waking waits (weights are read again), and how long requests that were
/// kept wait while no load goes on.
inline constexpr std::chrono::milliseconds kWakeMost{600'000};

struct ReplicaOptions {
  RankSetOptions ranks;
  engine::SchedulerOptions scheduler;
  std::vector<std::int32_t> eos_tokens;
  std::int32_t num_speculative_tokens = 0;  // of requests that do not say
  std::int64_t vocab_size = 0;              // of the logits; token masks cover it
  int mask_threads = 2;
  /// Level 1 of Sleep() keeps the processes, and with them the weights.
  bool keeps_weights_asleep = true;
  /// After this many faults in a row without a finished step, what is running is failed instead of
  /// replayed once more.
  int max_replays = 3;
  /// When lost ranks have not come back, nor loaded further, for so long, waiting requests are
  /// failed rather than held for ever. Waking has kWakeMost instead.
  std::int64_t recovery_deadline_ms = 300'000;
  /// A first load that fails this often fails the server.
  int max_load_failures = 1;
  std::int64_t max_waiting_tokens = 0;     // of prompts without their first token; 0: no limit
  std::int64_t max_predicted_wait_ms = 0;  // 0: no limit
  /// Without a finished step for so long while there is work, stalled_ms() says so; 0: never.
  std::int64_t stall_deadline_ms = 0;
  const base::Clock* clock = nullptr;  // outlives the replica; null: the steady one
};

/// All public functions are thread-safe; the rest runs on the engine thread.
class Replica {
 public:
  /// `host` and `hasher` outlive the replica. `on_ended` is called on the engine thread.
  /// `kv_events`: null for none.
  Replica(ReplicaOptions options,
          WorkerHost* host,
          const engine::PrefixHasher* hasher,
          RequestEnded on_ended,
          std::unique_ptr<KvEventPublisher> kv_events = nullptr);
  ~Replica();

  void Start();
  /// Fails what is left with kUnavailable, asks the workers to end, and joins the thread.
  void Stop();

  /// Admission: the bounds on what waits are checked here, so that the caller learns it at once.
  /// `refusal`, if not null, is filled in with kResourceExhausted.
  Result<> Submit(GenerateRequest request,
                  std::vector<engine::Hash128> keys,
                  std::int64_t cost_tokens,
                  Refusal* refusal);
  void Cancel(StreamId stream, std::int32_t choice);
  /// Asynchronous: rested() is true when it is done. What runs is failed, or with `keep_requests`
  /// goes on after WakeUp().
  void Sleep(int level, bool keep_requests);
  /// Asynchronous: phase() is kReady when it is done.
  void WakeUp();
  bool rested() const { return sleeps_done_.load() == sleeps_asked_.load(); }
  bool has_requests() const { return admitted_.load() > 0; }

  // What the control server and the launchers report.
  void OnHello(std::shared_ptr<rpc::Peer> peer);
  void OnMessage(std::uint64_t worker_id, rpc::FromWorker message);
  void OnClosed(std::uint64_t worker_id);
  void OnExit(std::uint64_t worker_id, std::string how);

  Phase phase() const { return phase_.load(); }
  /// How long it has stood still, when that is for longer than the deadline; else 0. Reads atomics
  /// only. Standing still: there is work and no step ends, nor a load goes on, or the engine thread
  /// does not turn.
  std::int64_t stalled_ms() const;
  /// Lost workers were not replaced by the recovery deadline. They still may be, later. Workers
  /// that do not wake up are not lost: they can be put to sleep again.
  bool lost_for_good() const { return lost_for_good_.load(); }
  /// Why phase() is kFailed.
  Error failure() const;
  ReplicaStats stats() const;
  LoadProgress load_progress() const;
  /// Closes the streams of a Send that has been stuck for longer than the step deadline. For a
  /// watchdog thread.
  void CheckStuckSend();

 private:
  struct SubmitEvent {
    GenerateRequest request;
    std::vector<engine::Hash128> keys;
    std::int64_t cost_tokens = 0;
    std::vector<engine::Backlog::Place> places;  // [choice]
  };
  struct CancelEvent {
    StreamId stream;
    std::int32_t choice = -1;
  };
  struct HelloEvent {
    std::shared_ptr<rpc::Peer> peer;
  };
  struct MessageEvent {
    std::uint64_t worker_id = 0;
    rpc::FromWorker message;
  };
  struct LostEvent {
    std::uint64_t worker_id = 0;
    std::string why;
    bool exited = false;  // its process; else its stream
  };
  struct MaskFailedEvent {
    std::uint64_t sequence = 0;
    Error error;
  };
  struct SleepEvent {
    std::uint64_t number = 0;
    int level = 1;
    bool keep_requests = false;
  };
  struct WakeEvent {};
  using Event = std::variant<SubmitEvent,
                             CancelEvent,
                             HelloEvent,
                             MessageEvent,
                             LostEvent,
                             MaskFailedEvent,
                             SleepEvent,
                             WakeEvent>;

  struct SentStep {
    std::int64_t step = 0;
    std::int64_t sent_ns = 0;
  };

  Result<> TakePlaces(const GenerateRequest& request,
                      std::vector<engine::Backlog::Place>* places,
                      Refusal* refusal);
  void LeaveBacklog(std::uint64_t id, bool begins);

  void Loop();
  void Handle(SubmitEvent& event);
  void Handle(CancelEvent& event);
  void Handle(HelloEvent& event);
  void Handle(MessageEvent& event);
  void Handle(LostEvent& event);
  void Handle(MaskFailedEvent& event);
  void Handle(SleepEvent& event);
  void Handle(WakeEvent& event);
  void HandleStepResult(std::uint64_t worker_id, const spec::StepResult& result);
  void HandleFault(std::uint64_t worker_id, const rpc::Fault& fault);

  void Pump();
  void CheckRanks();
  void CheckSleep();
  void CheckStepDeadline();
  void CheckRecoveryDeadline();
  void NoteProgress();
  void BeginRecovery(const std::string& why);
  void FailAll(const Error& error);
  void TakeEngineEvents();
  void MakeMasks();
  void FailSequence(std::uint64_t id, const Error& error);
  void PublishStats();
  std::chrono::milliseconds NextWait() const;

  const ReplicaOptions options_;
  const base::Clock& clock_;
  Mailbox<Event> mailbox_;
  std::atomic<bool> stop_{false};
  std::atomic<Phase> phase_{Phase::kStarting};
  std::atomic<std::int64_t> admitted_{0};  // sequences submitted and not ended
  std::atomic<std::uint64_t> sleeps_asked_{0}, sleeps_done_{0};
  mutable std::mutex backlog_mutex_;
  engine::Backlog backlog_;  // guarded by backlog_mutex_
  std::atomic<std::int64_t> bytes_done_{0}, bytes_total_{0};
  mutable std::mutex stats_mutex_;
  ReplicaStats stats_;            // guarded by stats_mutex_
  std::optional<Error> failure_;  // guarded by stats_mutex_
  std::atomic<bool> lost_for_good_{false};
  std::atomic<std::int64_t> send_started_ns_{0};  // 0: no Send is going on
  std::atomic<std::int64_t> progress_ns_{0};  // when there was a step, or nothing to do; 0: not yet
  std::mutex peers_mutex_;
  std::vector<std::weak_ptr<rpc::Peer>> peers_;  // guarded by peers_mutex_; for CheckStuckSend

  std::unique_ptr<KvEventPublisher> kv_publisher_;  // null: no KV events

  // The engine thread's own:
  KvEventRecorder kv_recorder_;  // outlives the scheduler, which tells it
  engine::Scheduler scheduler_;
  RankSet ranks_;
  SequenceTable table_;
  std::unordered_map<std::uint64_t, engine::Backlog::Place> places_;  // of those without a token
  std::uint64_t generation_ = 1;
  std::deque<SentStep> sent_;
  std::int64_t last_result_ns_ = 0;
  std::int64_t fault_began_ns_ = 0;
  int faults_in_a_row_ = 0;
  int load_failures_ = 0;
  bool was_ready_ = false;
  bool gave_up_waiting_ = false;  // in this recovery
  bool asleep_ = false;           // between SleepEvent and WakeEvent
  bool keep_requests_ = false;    // while asleep
  bool waking_ = false;           // from WakeEvent until the ranks run
  std::uint64_t sleep_number_ = 0;
  std::vector<engine::TokenEvent> token_events_;
  std::vector<engine::MaskRequest> mask_requests_;
  MaskMaker masks_;  // its threads post to the mailbox and send to the ranks
  std::thread thread_;
};

}  // namespace inferd::leader
