// SPDX-License-Identifier: Apache-2.0
#include "front_end_source.h"

#include "api/core/event_ring.h"
#include "base/clock.h"

#include <time.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace inferd::bench {
namespace {

constexpr std::int64_t kNsPerS = 1'000'000'000;
constexpr std::int64_t kIdleNs = 1'000'000;

std::int64_t NowNs() { return base::SteadyClock::Get().NowNs(); }

void WaitUntil(std::int64_t at_ns) {
  const timespec until{at_ns / kNsPerS, at_ns % kNsPerS};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
}

}  // namespace

TokenSource::TokenSource(const spec::ModelSpec& model,
                         const text::Tokenizer& tokenizer,
                         std::int64_t rate,
                         Shared* shared)
    : model_(model), rate_(rate), shared_(shared) {
  const auto ids = tokenizer.Encode(
      " the quick brown fox jumps over a lazy dog while it rains on every house in this town", {});
  if (ids.ok()) {
    for (const std::int32_t id : *ids) {
      const std::string text = tokenizer.Decode(std::vector<std::int32_t>{id}, false);
      if (text.size() > 2 && text.front() == ' ' && text.find(' ', 1) == std::string::npos) {
        words_.push_back(id);
      }
    }
  }
}

Result<> TokenSource::Submit(leader::GenerateRequest request, leader::Refusal* /*refusal*/) {
  const std::lock_guard lock(mutex_);
  submitted_.push_back(std::move(request));
  return {};
}

void TokenSource::Cancel(leader::StreamId stream, std::int32_t /*choice*/) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(stream);
}

void TokenSource::TakeInbox() {
  std::vector<leader::GenerateRequest> submitted;
  std::vector<leader::StreamId> cancelled;
  {
    const std::lock_guard lock(mutex_);
    submitted.swap(submitted_);
    cancelled.swap(cancelled_);
  }
  for (const auto& request : submitted) {
    live_.push_back({request.stream,
                     request.sink,
                     static_cast<std::size_t>(request.sampling.seed) % kMaxStreams,
                     0,
                     request.max_tokens});
  }
  for (const auto& id : cancelled) {
    std::erase_if(live_, [&](const Live& live) { return live.id == id; });
  }
  shared_->live.store(static_cast<std::int64_t>(live_.size()));
}

void TokenSource::Step() {
  if (live_.empty()) {
    return;
  }
  const std::int64_t now = NowNs();
  events_.clear();
  for (Live& live : live_) {
    leader::OutputEvent event;
    event.stream = live.id;
    event.token.emplace();
    event.token->token = words_[static_cast<std::size_t>(live.made) % words_.size()];
    shared_->made_ns[live.number][static_cast<std::size_t>(live.made % kStamps)] = now;
    if (++live.made == live.wanted) {
      event.finish = leader::FinishReason::kLength;
    }
    events_.push_back(std::move(event));
  }
  live_.front().sink->Publish(events_);  // one I/O thread, one sink
  std::erase_if(live_, [](const Live& live) { return live.made == live.wanted; });
}

void TokenSource::WaitUntilTaken() {
  const auto* const inbox =
      live_.empty() ? nullptr : dynamic_cast<const api::EventInbox*>(live_.front().sink);
  while (inbox != nullptr && !inbox->idle()) {
    std::this_thread::yield();
  }
}

void TokenSource::Run() {
  std::int64_t next = NowNs();
  while (true) {
    TakeInbox();
    if (live_.empty() || !shared_->go.load()) {
      next = NowNs() + kIdleNs;
      WaitUntil(next);
      continue;
    }
    Step();
    if (rate_ > 0) {
      next = std::max(next + static_cast<std::int64_t>(live_.size()) * kNsPerS / rate_, NowNs());
      WaitUntil(next);
    } else {
      WaitUntilTaken();
    }
  }
}

}  // namespace inferd::bench
