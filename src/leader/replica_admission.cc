// SPDX-License-Identifier: Apache-2.0
// Who is let in: the bounds on what waits, and when those who are refused may come back.
#include "base/error.h"
#include "leader/replica.h"
#include "leader/serving.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inferd::leader {
namespace {

constexpr std::int64_t kMinRetryAfterMs = 50;
constexpr std::int64_t kMaxRetryAfterMs = 120'000;

}  // namespace

Result<> Replica::Submit(GenerateRequest request,
                         std::vector<engine::Hash128> keys,
                         std::int64_t cost_tokens,
                         Refusal* refusal) {
  INFERD_TRY(CheckServing(phase_.load(), refusal));
  const std::int64_t limit = options_.scheduler.max_waiting;
  if (request.n > limit) {
    return InvalidArgument(
        "the request has {} choices, but at most {} are taken at once; lower n, or raise "
        "--max-waiting",
        request.n,
        limit);
  }
  std::vector<engine::Backlog::Place> places;
  INFERD_TRY(TakePlaces(request, &places, refusal));
  mailbox_.Post(SubmitEvent{std::move(request), std::move(keys), cost_tokens, std::move(places)});
  return {};
}

/// One for each choice, or none and why not.
Result<> Replica::TakePlaces(const GenerateRequest& request,
                             std::vector<engine::Backlog::Place>* places,
                             Refusal* refusal) {
  const auto num_prompt = static_cast<std::int64_t>(request.prompt.size());
  engine::WaitingWork work{
      .priority = request.priority,
      .share = request.tenant.empty() ? "u" + request.user : "t" + request.tenant,
      .weight = request.weight,
      .prompt_tokens = num_prompt,
      .cost = engine::LikelyCost(num_prompt, request.max_tokens),
  };
  const std::lock_guard lock(backlog_mutex_);
  const std::int64_t now_ns = clock_.NowNs();
  const auto refuse = [&](std::string_view reason, std::optional<std::int64_t> soonest_ns) {
    if (refusal == nullptr) {
      return;
    }
    refusal->reason = reason;
    if (soonest_ns) {
      const std::int64_t ms = backlog_.AppointNs(work, *soonest_ns, now_ns) / base::kNsPerMs;
      refusal->retry_after_ms = std::clamp(ms, kMinRetryAfterMs, kMaxRetryAfterMs);
    }
  };
  const std::int64_t limit = options_.scheduler.max_waiting;
  const std::int64_t before = admitted_.load();
  if (before + request.n > limit) {
    refuse("queue_full", backlog_.NsUntilLeft(before + request.n - limit, 0));
    return ResourceExhausted(
        "{} sequences are running or queued, at most {} are taken; try again later", before, limit);
  }
  // A prompt longer than the limit is let in when nothing else waits.
  const std::int64_t waiting_tokens = backlog_.prompt_tokens();
  if (options_.max_waiting_tokens > 0 && waiting_tokens > 0 &&
      waiting_tokens + num_prompt > options_.max_waiting_tokens) {
    const std::int64_t too_many = waiting_tokens + num_prompt - options_.max_waiting_tokens;
    refuse("tokens", backlog_.NsUntilLeft(0, std::min(waiting_tokens, too_many)));
    return ResourceExhausted(
        "prompts of {} tokens wait and this one has {}, at most {} are taken; try again later",
        waiting_tokens,
        num_prompt,
        options_.max_waiting_tokens);
  }
  if (options_.max_predicted_wait_ms > 0) {
    const std::int64_t wait_ns = backlog_.WaitNs(work, now_ns);
    const std::int64_t most_ns = options_.max_predicted_wait_ms * base::kNsPerMs;
    if (wait_ns > most_ns) {
      refuse("predicted_wait", wait_ns - most_ns);
      return ResourceExhausted(
          "this request would wait about {} ms for its turn, at most {} ms are taken; try again "
          "later",
          wait_ns / base::kNsPerMs,
          options_.max_predicted_wait_ms);
    }
  }
  admitted_.fetch_add(request.n);
  for (std::int32_t choice = 0; choice < request.n; ++choice) {
    places->push_back(backlog_.Arrive(work, now_ns));
    work.prompt_tokens = 0;  // the siblings take it from the prefix cache
    work.cost = engine::LikelyCost(0, request.max_tokens);
  }
  return {};
}

/// Of a sequence that has its first token (`begins`), or has ended without.
void Replica::LeaveBacklog(std::uint64_t id, bool begins) {
  const auto it = places_.find(id);
  if (it == places_.end()) {
    return;
  }
  const std::lock_guard lock(backlog_mutex_);
  if (begins) {
    backlog_.Begin(it->second, clock_.NowNs());
  } else {
    backlog_.Leave(it->second, clock_.NowNs());
  }
  places_.erase(it);
}

}  // namespace inferd::leader
