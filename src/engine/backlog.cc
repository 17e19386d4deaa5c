// SPDX-License-Identifier: Apache-2.0
#include "engine/backlog.h"

#include "base/check.h"

#include <algorithm>
#include <cmath>

namespace inferd::engine {
namespace {

/// What was this long ago counts 1/e.
constexpr double kMemorySeconds = 10;
/// Fewer seconds of queueing than this say nothing.
constexpr double kLeastSeconds = 0.02;
constexpr std::int64_t kLongestAppointmentsNs = 120'000'000'000;
constexpr std::size_t kMaxAppointments = 1024;
/// A longer wait is told as this: the rate fades towards nothing while nothing begins.
constexpr double kLongestSeconds = 3600;

std::int64_t Nanoseconds(double seconds) {
  return static_cast<std::int64_t>(std::min(seconds, kLongestSeconds) * 1e9);
}

}  // namespace

void Backlog::Pass(std::int64_t now_ns) {
  if (sum_.sequences > 0) {
    const double seconds = static_cast<double>(now_ns - then_ns_) * 1e-9;
    const double kept = std::exp(-seconds / kMemorySeconds);
    rate_.seconds = rate_.seconds * kept + seconds;
    rate_.sequences *= kept;
    rate_.prompt_tokens *= kept;
    rate_.cost *= kept;
  }
  then_ns_ = now_ns;
}

Backlog::Place Backlog::Arrive(const WaitingWork& work, std::int64_t now_ns) {
  Pass(now_ns);
  Share& share = shares_[{work.priority, work.share}];
  share.weight = std::max(work.weight, 1);
  for (Amount* amount : {&share.waiting, &sum_}) {
    ++amount->sequences;
    amount->prompt_tokens += work.prompt_tokens;
    amount->cost += work.cost;
  }
  return {work.priority, work.share, work.prompt_tokens, work.cost};
}

void Backlog::Take(const Place& place) {
  const auto it = shares_.find({place.priority, place.share});
  INFERD_CHECK(it != shares_.end());
  for (Amount* amount : {&it->second.waiting, &sum_}) {
    --amount->sequences;
    amount->prompt_tokens -= place.prompt_tokens;
    amount->cost -= place.cost;
  }
  if (it->second.waiting.sequences == 0) {
    shares_.erase(it);
  }
}

void Backlog::Begin(const Place& place, std::int64_t now_ns) {
  Pass(now_ns);
  rate_.sequences += 1;
  rate_.prompt_tokens += static_cast<double>(place.prompt_tokens);
  rate_.cost += static_cast<double>(place.cost);
  Take(place);
}

void Backlog::Leave(const Place& place, std::int64_t now_ns) {
  Pass(now_ns);
  Take(place);
}

bool Backlog::rate_known() const { return rate_.seconds >= kLeastSeconds && rate_.cost > 0; }

std::int64_t Backlog::WaitNs(const WaitingWork& newcomer, std::int64_t now_ns) const {
  if (sum_.sequences == 0 || !rate_known()) {
    return 0;
  }
  const auto own = shares_.find({newcomer.priority, newcomer.share});
  const std::int64_t own_cost = own == shares_.end() ? 0 : own->second.waiting.cost;
  // The others get as much as it for each unit of weight until all of its own have begun.
  const double passes = static_cast<double>(own_cost + newcomer.cost) /
                        static_cast<double>(std::max(newcomer.weight, 1));
  double ahead = static_cast<double>(own_cost);
  for (const auto& [name, share] : shares_) {
    const auto cost = static_cast<double>(share.waiting.cost);
    if (name.first < newcomer.priority) {
      ahead += cost;
    } else if (name.first == newcomer.priority && name.second != newcomer.share) {
      ahead += std::min(cost, passes * static_cast<double>(share.weight));
    }
  }
  // Time that has passed since the last change without anything leaving slows the rate.
  const double seconds = rate_.seconds + static_cast<double>(now_ns - then_ns_) * 1e-9;
  return Nanoseconds(ahead / rate_.cost * seconds);
}

std::optional<std::int64_t> Backlog::NsUntilLeft(std::int64_t sequences,
                                                 std::int64_t prompt_tokens) const {
  if (!rate_known()) {
    return std::nullopt;
  }
  const double seconds =
      std::max(
          static_cast<double>(sequences) / rate_.sequences,
          rate_.prompt_tokens > 0 ? static_cast<double>(prompt_tokens) / rate_.prompt_tokens : 0) *
      rate_.seconds;
  return Nanoseconds(seconds);
}

std::int64_t Backlog::AppointNs(const WaitingWork& newcomer,
                                std::int64_t soonest_ns,
                                std::int64_t now_ns) {
  if (appointed_ns_.size() >= kMaxAppointments) {
    std::erase_if(appointed_ns_, [now_ns](const auto& entry) { return entry.second <= now_ns; });
  }
  if (appointed_ns_.size() >= kMaxAppointments) {
    appointed_ns_.clear();  // more shares than a server can tell apart: all may come at once
  }
  std::int64_t& appointed_ns = appointed_ns_[{newcomer.priority, newcomer.share}];
  const std::int64_t at_ns =
      std::clamp(appointed_ns, now_ns + soonest_ns, now_ns + soonest_ns + kLongestAppointmentsNs);
  const double seconds =
      rate_known() ? static_cast<double>(newcomer.cost) / rate_.cost * rate_.seconds : 0;
  appointed_ns = at_ns + Nanoseconds(seconds);
  return at_ns - now_ns;
}

}  // namespace inferd::engine
