// SPDX-License-Identifier: Apache-2.0
#include "leader/replica.h"

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace inferd::leader {
namespace {

/// Timers (deadlines, respawns) are looked at this often while there is anything to wait for.
constexpr std::chrono::milliseconds kTimerPeriod{20};
constexpr std::chrono::milliseconds kIdlePeriod{500};

std::uint64_t ToCount(std::int64_t value) { return static_cast<std::uint64_t>(value); }

}  // namespace

Replica::Replica(ReplicaOptions options,
                 WorkerHost* host,
                 const engine::PrefixHasher* hasher,
                 RequestEnded on_ended,
                 std::unique_ptr<KvEventPublisher> kv_events)
    : options_(std::move(options)),
      clock_(options_.clock == nullptr ? base::SteadyClock::Get() : *options_.clock),
      kv_publisher_(std::move(kv_events)),
      kv_recorder_([this](KvEventBatch batch) { return kv_publisher_->Publish(std::move(batch)); }),
      scheduler_(options_.scheduler, clock_, *hasher),
      ranks_(options_.ranks, host, clock_),
      table_(std::move(on_ended)),
      masks_(options_.mask_threads, options_.vocab_size, [this](std::uint64_t id, Error error) {
        mailbox_.Post(MaskFailedEvent{id, std::move(error)});
      }) {
  if (kv_publisher_ != nullptr) {
    scheduler_.Observe(&kv_recorder_);
  }
}

Replica::~Replica() { Stop(); }

void Replica::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void Replica::Stop() {
  if (thread_.joinable()) {
    stop_.store(true);
    mailbox_.Post(CancelEvent{});
    thread_.join();
    masks_.Stop();
    if (kv_publisher_ != nullptr) {
      kv_publisher_->Stop();
    }
  }
}

// ---- any thread

void Replica::Cancel(StreamId stream, std::int32_t choice) {
  mailbox_.Post(CancelEvent{stream, choice});
}

void Replica::OnHello(std::shared_ptr<rpc::Peer> peer) {
  {
    const std::lock_guard lock(peers_mutex_);
    std::erase_if(peers_, [](const std::weak_ptr<rpc::Peer>& p) { return p.expired(); });
    peers_.push_back(peer);
  }
  mailbox_.Post(HelloEvent{std::move(peer)});
}

void Replica::OnMessage(std::uint64_t worker_id, rpc::FromWorker message) {
  mailbox_.Post(MessageEvent{worker_id, std::move(message)});
}

void Replica::OnClosed(std::uint64_t worker_id) {
  mailbox_.Post(LostEvent{worker_id, "its control stream ended"});
}

void Replica::OnExit(std::uint64_t worker_id, std::string how) {
  mailbox_.Post(LostEvent{worker_id, std::move(how), true});
}

Error Replica::failure() const {
  const std::lock_guard lock(stats_mutex_);
  return failure_.value_or(Unavailable("the replica has not failed"));
}

ReplicaStats Replica::stats() const {
  ReplicaStats stats;
  {
    const std::lock_guard lock(stats_mutex_);
    stats = stats_;
  }
  stats.phase = phase_.load();
  const std::lock_guard lock(backlog_mutex_);
  stats.waiting_tokens = backlog_.prompt_tokens();
  stats.predicted_wait_ms = backlog_.WaitNs({.share = "u"}, clock_.NowNs()) / base::kNsPerMs;
  return stats;
}

std::int64_t Replica::stalled_ms() const {
  const std::int64_t since_ns = progress_ns_.load();
  if (since_ns == 0 || options_.stall_deadline_ms == 0) {
    return 0;
  }
  const std::int64_t ms = (clock_.NowNs() - since_ns) / base::kNsPerMs;
  return ms > options_.stall_deadline_ms ? ms : 0;
}

LoadProgress Replica::load_progress() const { return {bytes_done_.load(), bytes_total_.load()}; }

void Replica::CheckStuckSend() {
  const std::int64_t started = send_started_ns_.load();
  if (started == 0 || clock_.NowNs() - started < options_.ranks.step_deadline_ms * base::kNsPerMs) {
    return;
  }
  const std::lock_guard lock(peers_mutex_);
  for (const std::weak_ptr<rpc::Peer>& weak : peers_) {
    if (const auto peer = weak.lock(); peer != nullptr) {
      peer->Close();
    }
  }
}

// ---- engine thread

void Replica::Loop() {
  ::pthread_setname_np(::pthread_self(), fmt::format("engine-{}", options_.ranks.replica).c_str());
  phase_.store(Phase::kLoading);
  scheduler_.Reset(generation_);  // Plans carry the generation of the ranks from the first one on.
  ranks_.BeginGeneration(generation_);
  std::vector<Event> events;
  while (!stop_.load()) {
    mailbox_.TakeAll(&events, NextWait());
    for (Event& event : events) {
      std::visit([this](auto& e) { Handle(e); }, event);
    }
    CheckRanks();
    NoteProgress();
    TakeEngineEvents();
    MakeMasks();  // Before Pump: steps that run now may wait for them.
    Pump();
    TakeEngineEvents();
    MakeMasks();
    table_.Publish();
    kv_recorder_.Flush();
    PublishStats();
  }
  phase_.store(Phase::kStopped);
  FailAll(Unavailable("the server is shutting down"));
  table_.Publish();
  ranks_.Shutdown();
}

std::chrono::milliseconds Replica::NextWait() const {
  if (phase_.load() == Phase::kAsleep) {
    return kIdlePeriod;
  }
  const bool busy = !ranks_.running() || scheduler_.has_unfinished() || !sent_.empty();
  return busy ? kTimerPeriod : kIdlePeriod;
}

void Replica::Handle(SubmitEvent& event) {
  GenerateRequest& request = event.request;
  const std::uint64_t first = table_.Add(request, event.cost_tokens);
  for (std::int32_t choice = 0; choice < request.n; ++choice) {
    engine::SequenceRequest sequence;
    sequence.id = first + static_cast<std::uint64_t>(choice);
    sequence.prompt = request.prompt;
    sequence.sampling = request.sampling;
    sequence.sampling.seed += static_cast<std::uint64_t>(choice);
    if (choice > 0) {
      sequence.sampling.prompt_logprobs = -1;  // The first choice's serve all.
    }
    sequence.max_tokens = request.max_tokens;
    sequence.embed = request.embed;
    sequence.min_tokens = request.min_tokens;
    sequence.ignore_eos = request.ignore_eos;
    sequence.num_speculative_tokens = request.num_speculative_tokens >= 0
                                          ? request.num_speculative_tokens
                                          : options_.num_speculative_tokens;
    sequence.constrained = request.constraint != nullptr;
    sequence.eos_tokens = options_.eos_tokens;
    sequence.stop_tokens = request.stop_token_ids;
    sequence.priority = request.priority;
    sequence.tenant = request.tenant;
    sequence.user = request.user;
    sequence.weight = request.weight;
    if (request.queue_deadline_ms > 0) {
      sequence.queue_deadline_ns = clock_.NowNs() + request.queue_deadline_ms * base::kNsPerMs;
    }
    sequence.cache_salt = request.cache_salt;
    sequence.fork_key = request.n > 1 ? first : 0;
    sequence.prefix_keys = event.keys;
    const std::uint64_t id = sequence.id;
    places_.emplace(id, std::move(event.places[static_cast<std::size_t>(choice)]));
    if (Result<> added = scheduler_.Add(std::move(sequence)); !added.ok()) {
      table_.Fail(id, added.error());
      LeaveBacklog(id, false);
      admitted_.fetch_sub(1);
    } else if (request.constraint != nullptr) {
      masks_.Add(id, request.constraint);
    }
  }
}

void Replica::Handle(CancelEvent& event) {
  for (const std::uint64_t id : table_.Find(event.stream, event.choice)) {
    scheduler_.Cancel(id);
  }
}

void Replica::Handle(MaskFailedEvent& event) {
  if (table_.Knows(event.sequence)) {
    FailSequence(event.sequence, event.error);
  }
}

void Replica::Handle(HelloEvent& event) { ranks_.OnHello(event.peer); }

void Replica::Handle(LostEvent& event) {
  if (!ranks_.Owns(event.worker_id)) {
    return;
  }
  const bool first_load = !was_ready_;
  ranks_.OnLost(event.worker_id, event.why, event.exited);
  if (first_load && ++load_failures_ >= options_.max_load_failures) {
    const std::lock_guard lock(stats_mutex_);
    if (!failure_) {
      failure_ = DataLoss("a worker died while the model was loaded: {}", event.why);
    }
    phase_.store(Phase::kFailed);
  }
}

void Replica::Handle(MessageEvent& event) {
  const std::uint64_t id = event.worker_id;
  if (const auto* result = std::get_if<spec::StepResult>(&event.message)) {
    HandleStepResult(id, *result);
  } else if (const auto* progress = std::get_if<rpc::LoadProgress>(&event.message)) {
    ranks_.OnLoadProgress(id, *progress);
    bytes_done_.store(ranks_.bytes_done());
    bytes_total_.store(ranks_.bytes_total());
  } else if (const auto* loaded = std::get_if<rpc::Loaded>(&event.message)) {
    ranks_.OnLoaded(id, *loaded);
  } else if (const auto* joined = std::get_if<rpc::Joined>(&event.message)) {
    ranks_.OnJoined(id, *joined);
  } else if (const auto* idle = std::get_if<rpc::Idle>(&event.message)) {
    ranks_.OnIdle(id, *idle);
  } else if (const auto* fault = std::get_if<rpc::Fault>(&event.message)) {
    HandleFault(id, *fault);
  } else {
    ranks_.OnLost(id, "it sent a message that only other peers may send");
  }
}

void Replica::HandleStepResult(std::uint64_t worker_id, const spec::StepResult& result) {
  if (result.generation != generation_ || !ranks_.running() || !ranks_.Owns(worker_id)) {
    return;  // From before a fault.
  }
  if (Result<> done = scheduler_.Complete(result); !done.ok()) {
    ranks_.OnLost(worker_id, done.error().message());
    return;
  }
  last_result_ns_ = clock_.NowNs();
  while (static_cast<std::int64_t>(sent_.size()) > scheduler_.num_in_flight()) {
    sent_.pop_front();
    faults_in_a_row_ = 0;
  }
}

void Replica::HandleFault(std::uint64_t worker_id, const rpc::Fault& fault) {
  if (fault.fatal) {
    if (!was_ready_) {
      const std::lock_guard lock(stats_mutex_);
      failure_ = Error(fault.code, fault.message);
      phase_.store(Phase::kFailed);
    }
    ranks_.OnLost(worker_id, fault.message);
    return;
  }
  if (fault.generation == generation_ && ranks_.Owns(worker_id)) {
    BeginRecovery(fmt::format("rank {} reports: {}", ranks_.RankOf(worker_id), fault.message));
  }
}

void Replica::CheckRanks() {
  if (phase_.load() == Phase::kFailed) {
    return;
  }
  if (ranks_.Tick()) {
    BeginRecovery("a worker was lost");
  }
  if (asleep_) {
    return CheckSleep();
  }
  CheckStepDeadline();
  if (!ranks_.running()) {
    if (was_ready_) {
      phase_.store(Phase::kRecovering);
      CheckRecoveryDeadline();
    }
    scheduler_.ExpireDeadlines();
    return;
  }
  if (phase_.load() != Phase::kReady) {
    if (was_ready_) {
      log::Info("leader",
                "replica {} is back after {} ms, generation {}",
                options_.ranks.replica,
                (clock_.NowNs() - fault_began_ns_) / base::kNsPerMs,
                generation_);
    }
    was_ready_ = true;
    waking_ = false;
    gave_up_waiting_ = false;
    lost_for_good_.store(false);
    last_result_ns_ = clock_.NowNs();
    phase_.store(Phase::kReady);
  }
}

/// A load that goes on is waited for, however long it takes. One that begins again, because its
/// worker died, goes on once it is further than any was.
void Replica::CheckRecoveryDeadline() {
  const std::int64_t since_ns = std::max(fault_began_ns_, ranks_.advanced_ns());
  const std::int64_t waited_ms = (clock_.NowNs() - since_ns) / base::kNsPerMs;
  const std::int64_t most_ms = waking_ ? kWakeMost.count() : options_.recovery_deadline_ms;
  const bool late = waited_ms > most_ms;
  if (late && !gave_up_waiting_) {
    log::Failure("leader",
                 "replica {} has not come back after {} ms, the last {} ms without progress",
                 options_.ranks.replica,
                 (clock_.NowNs() - fault_began_ns_) / base::kNsPerMs,
                 waited_ms);
  }
  gave_up_waiting_ = late;
  lost_for_good_.store(late && !waking_);
  if (late && !table_.empty()) {
    FailAll(Unavailable("the model's workers could not be replaced within {} ms", most_ms));
  }
}

/// Waiting requests are no progress; a load, a sleep or nothing to do is no lack of it. A fault is
/// progress: the recovery has a deadline of its own.
void Replica::NoteProgress() {
  if (admitted_.load() == 0 || !was_ready_ || asleep_ || waking_) {
    progress_ns_.store(clock_.NowNs());
  } else {
    progress_ns_.store(
        std::max({progress_ns_.load(), last_result_ns_, fault_began_ns_, ranks_.advanced_ns()}));
  }
}

void Replica::CheckStepDeadline() {
  if (sent_.empty()) {
    return;
  }
  const std::int64_t since = std::max(sent_.front().sent_ns, last_result_ns_);
  if (clock_.NowNs() - since > options_.ranks.step_deadline_ms * base::kNsPerMs) {
    BeginRecovery(fmt::format("step {} has run for more than {} ms",
                              sent_.front().step,
                              options_.ranks.step_deadline_ms));
  }
}

void Replica::BeginRecovery(const std::string& why) {
  if (phase_.load() == Phase::kReady) {
    fault_began_ns_ = clock_.NowNs();
  }
  ++faults_in_a_row_;
  ++generation_;
  log::Warning("leader",
               "replica {}: {}; beginning generation {}",
               options_.ranks.replica,
               why,
               generation_);
  if (was_ready_) {
    phase_.store(Phase::kRecovering);
  }
  sent_.clear();
  if (faults_in_a_row_ > options_.max_replays) {
    FailAll(Unavailable("worker lost {} times in a row while this request ran", faults_in_a_row_));
    faults_in_a_row_ = 0;
  }
  scheduler_.Reset(generation_);
  ranks_.BeginGeneration(generation_);
}

void Replica::FailAll(const Error& error) {
  for (const std::uint64_t id : table_.All()) {
    FailSequence(id, error);
  }
}

// The scheduler's own last event then meets a table that no longer knows the sequence.
void Replica::FailSequence(std::uint64_t id, const Error& error) {
  scheduler_.Cancel(id);
  table_.Fail(id, error);
  LeaveBacklog(id, false);
  admitted_.fetch_sub(1);
}

void Replica::Pump() {
  if (!ranks_.running()) {
    return;
  }
  while (std::optional<spec::StepPlan> plan = scheduler_.Schedule()) {
    sent_.push_back({plan->step, clock_.NowNs()});
    send_started_ns_.store(sent_.back().sent_ns);
    ranks_.Broadcast(*std::move(plan));  // A broken stream also arrives as a LostEvent.
    send_started_ns_.store(0);
  }
}

void Replica::TakeEngineEvents() {
  scheduler_.TakeEvents(&token_events_);
  std::int64_t ended = 0;
  for (const engine::TokenEvent& event : token_events_) {
    // A sequence that FailAll has ended already is unknown to the table and counted there.
    const bool ends = event.finish != engine::FinishReason::kNone;
    ended += ends && table_.Knows(event.id) ? 1 : 0;
    if (event.first || ends) {
      LeaveBacklog(event.id, event.first || event.finish == engine::FinishReason::kLength);
    }
    if (ends) {
      masks_.Remove(event.id);
    } else if (event.token >= 0) {
      masks_.TakeToken(event.id, event.token);
    }
  }
  table_.Take(token_events_);
  admitted_.fetch_sub(ended);
}

void Replica::MakeMasks() {
  scheduler_.TakeMaskRequests(&mask_requests_);
  for (const engine::MaskRequest& request : mask_requests_) {
    // Without the peer the generation is over, and nobody waits.
    if (std::shared_ptr<rpc::Peer> sampler = ranks_.SamplerOf(request.group); sampler != nullptr) {
      masks_.Make(request, generation_, std::move(sampler));
    }
  }
}

void Replica::PublishStats() {
  const engine::SchedulerStats now = scheduler_.Stats();
  const auto finished = [&](engine::FinishReason reason) {
    return ToCount(now.finished[static_cast<std::size_t>(reason)]);
  };
  const std::lock_guard lock(stats_mutex_);
  stats_.running = now.running;
  stats_.waiting = now.waiting;
  stats_.page_tokens = options_.scheduler.page_size;
  stats_.kv_pages_total = now.kv_pages_total;
  stats_.kv_pages_used = now.kv_pages_used;
  stats_.kv_pages_cached = now.kv_pages_cached;
  stats_.prompt_tokens = ToCount(now.prompt_tokens);
  stats_.generated_tokens = ToCount(now.generation_tokens);
  stats_.prefix_queries = ToCount(now.prefix_query_tokens);
  stats_.prefix_hits = ToCount(now.prefix_hit_tokens);
  stats_.preemptions = ToCount(now.preemptions);
  stats_.drafts = ToCount(now.drafts);
  stats_.draft_tokens = ToCount(now.draft_tokens);
  stats_.accepted_tokens = ToCount(now.accepted_tokens);
  stats_.kv_event_batches = kv_recorder_.num_batches();
  stats_.kv_event_batches_dropped = kv_recorder_.num_dropped();
  stats_.steps = ToCount(now.steps);
  stats_.restarts = ranks_.restarts();
  stats_.finished_stop = finished(engine::FinishReason::kStop);
  stats_.finished_length = finished(engine::FinishReason::kLength);
  stats_.finished_cancelled = finished(engine::FinishReason::kAbort);
  stats_.finished_error = finished(engine::FinishReason::kError);
}

}  // namespace inferd::leader
