// SPDX-License-Identifier: Apache-2.0
// FakeInferenceService: recites scripts from an engine thread of its own, one token per running
// choice and step. And a byte-level tokenizer with which the scripts are written.
#pragma once

#include "base/error.h"
#include "byte_model.h"
#include "leader/inference_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace inferd::api {

class FakeInferenceService final : public leader::InferenceService {
 public:
  FakeInferenceService() : thread_([this] { Loop(); }) {}
  ~FakeInferenceService() override { Stop(); }

  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  /// What every choice says from now on (choice k of a request: scripts[k % size]). Ends by kEos or
  /// max_tokens; a script that runs out is repeated.
  void SetScripts(std::vector<std::vector<std::int32_t>> scripts) {
    const std::lock_guard lock(mutex_);
    scripts_ = std::move(scripts);
  }
  /// Of its model; before requests come.
  void SetEosIds(std::vector<std::int32_t> ids) { spec_.eos_ids = std::move(ids); }
  /// No tokens while paused.
  void Pause(bool paused) {
    {
      const std::lock_guard lock(mutex_);
      paused_ = paused;
    }
    changed_.notify_all();
  }
  void SetPhase(leader::Phase phase) { phase_.store(phase); }
  void FailNextSubmit(Error error, std::int64_t retry_after_ms = 0, std::string_view reason = {}) {
    const std::lock_guard lock(mutex_);
    refusal_ = {retry_after_ms, reason};
    submit_error_ = std::move(error);
  }
  /// After this many tokens of a choice it ends with the error.
  void FailAfter(int tokens, Error error) {
    const std::lock_guard lock(mutex_);
    fail_after_ = tokens;
    fail_error_ = std::move(error);
  }

  /// While held, choices that have come to their failure wait before it.
  void HoldFailure(bool hold) {
    {
      const std::lock_guard lock(mutex_);
      hold_failure_ = hold;
    }
    changed_.notify_all();
  }
  /// Choices that have made this many tokens go on only when they are cancelled: they run for as
  /// long as a test looks at them.
  void HoldAt(int tokens) {
    const std::lock_guard lock(mutex_);
    hold_at_ = tokens;
  }
  /// Waits until `count` choices run (queued or running); false after 10 s.
  bool WaitRunning(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(
        lock, std::chrono::seconds(10), [&] { return running_.size() == count; });
  }
  std::size_t cancels() const {
    const std::lock_guard lock(mutex_);
    return cancels_;
  }
  std::uint64_t tokens() const { return tokens_.load(); }
  std::optional<leader::GenerateRequest> last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }

  Result<> Submit(leader::GenerateRequest request, leader::Refusal* refusal) override {
    const std::lock_guard lock(mutex_);
    if (submit_error_) {
      Error error = *std::exchange(submit_error_, std::nullopt);
      *refusal = refusal_;
      return error;
    }
    last_ = request;
    for (std::int32_t choice = 0; choice < request.n; ++choice) {
      running_.push_back({request, choice, 0});
    }
    changed_.notify_all();
    return {};
  }

  void Cancel(leader::StreamId stream, std::int32_t choice) override {
    const std::lock_guard lock(mutex_);
    ++cancels_;
    std::erase_if(running_, [&](const Running& r) {
      return r.request.stream == stream && (choice < 0 || r.choice == choice);
    });
    changed_.notify_all();
  }

  Result<> Sleep(int level, leader::SleepMode mode) override {
    sleep_level_ = level;
    sleep_mode_ = mode;
    if (mode == leader::SleepMode::kWait && waits_for_waking_) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return sleep_level_ == 0; });
    }
    return {};
  }
  Result<> WakeUp() override {
    const std::lock_guard lock(mutex_);
    sleep_level_ = 0;
    changed_.notify_all();
    return {};
  }
  int sleep_level() const override { return sleep_level_; }
  /// Makes a Sleep of mode kWait return with WakeUp only.
  void WaitForWaking() { waits_for_waking_ = true; }
  leader::SleepMode sleep_mode() const { return sleep_mode_; }
  leader::Phase phase() const override { return phase_.load(); }
  void SetStallMs(std::int64_t ms) { stall_ms_.store(ms); }
  std::optional<leader::Stall> stall() const override {
    const std::int64_t ms = stall_ms_.load();
    return ms > 0 ? std::optional(leader::Stall{.replica = 1, .ms = ms}) : std::nullopt;
  }
  leader::LoadProgress load_progress() const override { return {1, 2}; }
  std::vector<leader::ReplicaStats> stats() const override {
    MaybeThrow();
    const std::lock_guard lock(mutex_);
    leader::ReplicaStats stats;
    stats.phase = phase_.load();
    stats.running = static_cast<std::int64_t>(running_.size());
    stats.kv_dtype = "float16";
    stats.kv_pages_total = 8;
    stats.kv_pages_used = 2;
    stats.generated_tokens = tokens_.load();
    return {stats, stats};
  }
  const spec::ModelSpec& model() const override { return spec_; }
  std::int64_t max_model_len() const override { return 1000; }
  std::int64_t max_choices() const override {
    MaybeThrow();
    return max_choices_.load();
  }
  void SetMaxChoices(std::int64_t choices) { max_choices_.store(choices); }
  /// Whoever asks for numbers gets an exception, as from a library that nobody expects to throw.
  void ThrowWhenAsked(bool on) { throw_.store(on); }

 private:
  void MaybeThrow() const {
    if (throw_.load()) {
      [[maybe_unused]] const int number = std::vector<int>().at(0);
    }
  }

  struct Running {
    leader::GenerateRequest request;
    std::int32_t choice;
    std::int32_t position;
  };

  leader::OutputEvent Next(Running* r) {
    leader::OutputEvent event;
    event.stream = r->request.stream;
    event.choice = r->choice;
    if (r->position == 0) {
      event.cached_tokens = 1;
      if (r->request.sampling.prompt_logprobs >= 0) {
        for (std::size_t i = 1; i < r->request.prompt.size(); ++i) {
          event.prompt_logprobs.push_back(
              Sampled(r->request.prompt[i], r->request.sampling.prompt_logprobs));
        }
      }
    }
    if (fail_after_ == r->position) {
      event.finish = leader::FinishReason::kError;
      event.error = fail_error_;
      return event;
    }
    if (r->request.embed) {
      event.embedding = {3, 0, -4, 0};
    }
    if (r->request.max_tokens == 0) {
      event.finish = leader::FinishReason::kLength;
      return event;
    }
    const auto& script = scripts_[static_cast<std::size_t>(r->choice) % scripts_.size()];
    const std::int32_t token = script[static_cast<std::size_t>(r->position) % script.size()];
    event.token = Sampled(token, r->request.sampling.logprobs);
    ++r->position;
    tokens_.fetch_add(1);
    const auto& stops = r->request.stop_token_ids;
    if ((token == kEos && !r->request.ignore_eos) ||
        std::find(stops.begin(), stops.end(), token) != stops.end()) {
      event.finish = leader::FinishReason::kStop;
      event.stop_token = token;
    } else if (r->position == r->request.max_tokens) {
      event.finish = leader::FinishReason::kLength;
    }
    return event;
  }

  bool Held(const Running& r) const {
    return r.position == hold_at_ || (hold_failure_ && r.position == fail_after_);
  }
  bool Idle() const {
    return paused_ || std::all_of(running_.begin(), running_.end(), [this](const Running& r) {
             return Held(r);
           });
  }

  void Loop() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (Idle()) {
        changed_.wait(lock);
        continue;
      }
      std::vector<std::pair<leader::EventSink*, leader::OutputEvent>> events;
      std::vector<bool> ended(running_.size());
      for (std::size_t k = 0; k < running_.size(); ++k) {
        if (!Held(running_[k])) {
          events.emplace_back(running_[k].request.sink, Next(&running_[k]));
          ended[k] = events.back().second.finish != leader::FinishReason::kNone;
        }
      }
      std::size_t i = 0;
      std::erase_if(running_, [&](const Running&) { return ended[i++]; });
      changed_.notify_all();
      lock.unlock();
      for (auto& [sink, event] : events) {
        sink->Publish({&event, 1});
      }
      std::this_thread::yield();
      lock.lock();
    }
  }

  std::atomic<int> sleep_level_{0};
  std::atomic<bool> waits_for_waking_{false};
  std::atomic<leader::SleepMode> sleep_mode_{leader::SleepMode::kAbort};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Running> running_;
  std::vector<std::vector<std::int32_t>> scripts_{WithEos(Bytes("Hello"))};
  leader::Refusal refusal_;
  std::optional<Error> submit_error_;
  std::optional<Error> fail_error_;
  std::optional<leader::GenerateRequest> last_;
  int fail_after_ = -1;
  std::size_t cancels_ = 0;
  int hold_at_ = -1;
  bool paused_ = false;
  bool hold_failure_ = false;
  bool stop_ = false;
  std::atomic<std::uint64_t> tokens_{0};
  std::atomic<leader::Phase> phase_{leader::Phase::kReady};
  std::atomic<std::int64_t> max_choices_{1 << 20};
  std::atomic<std::int64_t> stall_ms_{0};
  std::atomic<bool> throw_{false};
  spec::ModelSpec spec_ = [] {
    spec::ModelSpec made;
    made.hidden_size = 4;
    made.bos_id = kBos;
    return made;
  }();
  std::thread thread_;  // last: it uses the rest
};

}  // namespace inferd::api
