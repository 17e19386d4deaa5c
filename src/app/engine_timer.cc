// SPDX-License-Identifier: Apache-2.0
#include "app/engine_timer.h"

#include "base/error.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace inferd::app {
namespace {

using SteadyClock = std::chrono::steady_clock;
using Times = std::vector<SteadyClock::time_point>;

constexpr std::chrono::milliseconds kLookAgain{200};
constexpr std::int64_t kPromptTokensPerDeadline = 8192;
constexpr std::int64_t kMostPromptIds = 20'000;  // ordinary ids of every vocabulary

double Seconds(SteadyClock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

double Percentile(const std::vector<double>& sorted, double share) {
  return sorted.empty()
             ? 0
             : sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
}

/// Of all streams, tokens in [begin, end] but for the first one of each.
EngineTiming TimingOf(const std::vector<Times>& streams,
                      SteadyClock::time_point begin,
                      SteadyClock::time_point end) {
  std::vector<double> gaps_ms;
  std::int64_t tokens = 0;
  for (const Times& times : streams) {
    // Two steps may be told of at once, so a second token may have the time of the first.
    for (std::size_t i = 1; i < times.size(); ++i) {
      if (times[i] >= begin && times[i] <= end) {
        ++tokens;
        gaps_ms.push_back(Seconds(times[i] - times[i - 1]) * 1e3);
      }
    }
  }
  std::sort(gaps_ms.begin(), gaps_ms.end());
  const double seconds = std::max(Seconds(end - begin), 1e-9);
  return {.seconds = seconds,
          .tokens_per_s = static_cast<double>(tokens) / seconds,
          .gap_p50_ms = Percentile(gaps_ms, 0.5),
          .gap_p95_ms = Percentile(gaps_ms, 0.95),
          .gap_max_ms = gaps_ms.empty() ? 0 : gaps_ms.back()};
}

}  // namespace

/// Notes when each token came. Events come from the engine threads.
class EngineTimer::Sink final : public leader::EventSink {
 public:
  void Publish(std::span<leader::OutputEvent> events) override {
    const auto now = SteadyClock::now();
    {
      const std::lock_guard lock(mutex_);
      for (const leader::OutputEvent& event : events) {
        Take(event, now);
      }
    }
    changed_.notify_one();
  }

  void Begin(std::int64_t streams, std::uint64_t round) {
    const std::lock_guard lock(mutex_);
    times_.assign(static_cast<std::size_t>(streams), {});
    round_ = round;
    error_.reset();
  }

  /// Waits until every stream has `tokens` tokens.
  Result<> WaitForTokens(std::size_t tokens,
                         std::int64_t stall_deadline_ms,
                         const std::function<bool()>& give_up) {
    return Wait(stall_deadline_ms, give_up, [this, tokens] {
      return std::all_of(times_.begin(), times_.end(), [tokens](const Times& times) {
        return times.size() >= tokens;
      });
    });
  }
  /// A moment, or until something happens.
  void Pause() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLookAgain / 10);
  }

  std::vector<Times> times() const {
    const std::lock_guard lock(mutex_);
    return times_;
  }

 private:
  void Take(const leader::OutputEvent& event, SteadyClock::time_point now) {
    if (event.stream.generation != round_) {
      return;
    }
    if (event.token) {
      times_[event.stream.slot].push_back(now);
      ++taken_;
    }
    if (event.error && !error_) {
      error_ = *event.error;
    }
  }

  template <typename Done>
  Result<> Wait(std::int64_t stall_deadline_ms, const std::function<bool()>& give_up, Done done) {
    std::unique_lock lock(mutex_);
    std::uint64_t seen = taken_;
    auto last_change = SteadyClock::now();
    while (!done()) {
      if (error_) {
        return *error_;
      }
      changed_.wait_for(lock, kLookAgain);
      if (give_up()) {
        return Cancelled("stopped");
      }
      if (taken_ != seen) {
        seen = taken_;
        last_change = SteadyClock::now();
      } else if (SteadyClock::now() - last_change > std::chrono::milliseconds(stall_deadline_ms)) {
        return DeadlineExceeded("no token in {} s", stall_deadline_ms / 1000);
      }
    }
    return {};
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Times> times_;  // [stream], when each of its tokens came
  std::uint64_t round_ = 0;
  std::uint64_t taken_ = 0;
  std::optional<Error> error_;
};

EngineTimer::EngineTimer(leader::InferenceService* service,
                         std::int64_t stall_deadline_ms,
                         std::function<bool()> give_up)
    : service_(service),
      stall_deadline_ms_(stall_deadline_ms),
      give_up_(std::move(give_up)),
      sink_(std::make_unique<Sink>()) {}

EngineTimer::~EngineTimer() = default;

Result<> EngineTimer::Submit(std::int64_t streams, std::int64_t context, std::int64_t max_tokens) {
  sink_->Begin(streams, ++round_);
  const std::int64_t ids = std::min<std::int64_t>(kMostPromptIds, service_->model().vocab_size);
  for (std::int64_t stream = 0; stream < streams; ++stream) {
    leader::GenerateRequest request;
    request.stream = {.io = 0, .slot = static_cast<std::uint32_t>(stream), .generation = round_};
    request.sink = sink_.get();
    request.prompt.resize(static_cast<std::size_t>(context));
    for (std::int64_t i = 0; i < context; ++i) {
      const std::uint64_t mixed = static_cast<std::uint64_t>(i + 1) * 7919 + round_ * 104'729 +
                                  static_cast<std::uint64_t>(stream) * 1'299'709;
      request.prompt[static_cast<std::size_t>(i)] =
          static_cast<std::int32_t>(mixed % static_cast<std::uint64_t>(ids));
    }
    request.sampling.temperature = 0;
    request.max_tokens = static_cast<std::int32_t>(max_tokens);
    request.ignore_eos = true;
    INFERD_TRY(service_->Submit(std::move(request), nullptr));
  }
  return {};
}

Result<> EngineTimer::WaitForFirst(std::int64_t context) {
  // A prompt makes no token while it is read.
  const std::int64_t deadlines = context / kPromptTokensPerDeadline + 1;
  return sink_->WaitForTokens(1, deadlines * stall_deadline_ms_, give_up_);
}

Result<> EngineTimer::Drain(std::int64_t streams) {
  for (std::int64_t stream = 0; stream < streams; ++stream) {
    service_->Cancel({.io = 0, .slot = static_cast<std::uint32_t>(stream), .generation = round_},
                     -1);
  }
  // A cancelled choice promises no event, so look at the engine itself.
  const auto deadline = SteadyClock::now() + std::chrono::milliseconds(stall_deadline_ms_);
  while (SteadyClock::now() < deadline) {
    const auto stats = service_->stats();
    if (std::all_of(stats.begin(), stats.end(), [](const leader::ReplicaStats& replica) {
          return replica.running == 0 && replica.waiting == 0;
        })) {
      // Steps that ranks have begun, or have been sent ahead, go on. They end in order, so that of
      // a generation of one token is the last.
      INFERD_TRY(Submit(1, 1, 1));
      return sink_->WaitForTokens(1, stall_deadline_ms_, give_up_);
    }
    if (give_up_()) {
      return Cancelled("stopped");
    }
    sink_->Pause();
  }
  return DeadlineExceeded("cancelled generations still run after {} s", stall_deadline_ms_ / 1000);
}

Result<EngineTiming> EngineTimer::Prefill(std::int64_t tokens) {
  const auto begin = SteadyClock::now();
  INFERD_TRY(Submit(1, tokens, 1));
  INFERD_TRY(WaitForFirst(tokens));
  const double seconds = Seconds(sink_->times()[0][0] - begin);
  INFERD_TRY(Drain(1));
  return EngineTiming{.seconds = seconds, .tokens_per_s = static_cast<double>(tokens) / seconds};
}

std::int64_t EngineTimer::DecodeTokens(std::int64_t streams,
                                       std::int64_t context,
                                       std::int64_t tokens,
                                       std::int64_t chunk) {
  return tokens + streams * (context / chunk + 2);
}

Result<EngineTiming> EngineTimer::Decode(std::int64_t streams,
                                         std::int64_t context,
                                         std::int64_t tokens,
                                         std::int64_t chunk) {
  INFERD_TRY(Submit(streams, context, DecodeTokens(streams, context, tokens, chunk)));
  INFERD_TRY(WaitForFirst(context));
  SteadyClock::time_point begin{};
  for (const Times& times : sink_->times()) {
    begin = std::max(begin, times.front());
  }
  // The stream that began last has made one token now, the others more: all go on to the same
  // moment, at which it has made `tokens` more.
  INFERD_TRY(
      sink_->WaitForTokens(static_cast<std::size_t>(tokens) + 1, stall_deadline_ms_, give_up_));
  const std::vector<Times> times = sink_->times();
  SteadyClock::time_point end{};
  for (const Times& of : times) {
    end = std::max(end, of[static_cast<std::size_t>(tokens)]);
  }
  const EngineTiming timing = TimingOf(times, begin, end);
  INFERD_TRY(Drain(streams));
  return timing;
}

}  // namespace inferd::app
