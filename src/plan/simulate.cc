// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/prefix_hasher.h"
#include "engine/replica_router.h"
#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

namespace inferd::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kNsPerSecond = 1e9;
constexpr double kPrewarmedStartSeconds = 1;
constexpr int kMaxReplicas = 64;  // the router's bound

enum class State : std::uint8_t { kOff, kStarting, kServing, kDraining, kLost };

/// A step on its way through the stages.
struct Flight {
  std::int64_t step = 0;
  double done_s = 0;
  std::vector<std::vector<spec::SampledToken>> sampled;  // [group]
};

struct Replica {
  State state = State::kOff;
  double since_s = 0;  // of being paid for
  double ready_s = 0;  // of kStarting
  std::unique_ptr<engine::Scheduler> scheduler;
  std::vector<double> stage_free_s;
  std::deque<Flight> flights;
};

struct Record {
  float first_s = -1;  // of the first token, after arrival
  float end_s = -1;
  std::int32_t tokens = 0;
  std::int16_t replica = -1;
  bool refused = false;
  bool retried = false;
};

Percentiles Summarise(std::vector<float>* values) {
  Percentiles out;
  if (values->empty()) {
    return out;
  }
  std::ranges::sort(*values);
  const auto at = [&](double share) {
    const auto last = static_cast<double>(values->size() - 1);
    return double{(*values)[static_cast<std::size_t>(std::llround(share * last))]};
  };
  out.mean =
      std::accumulate(values->begin(), values->end(), 0.0) / static_cast<double>(values->size());
  out.p50 = at(0.5);
  out.p90 = at(0.9);
  out.p99 = at(0.99);
  out.max = values->back();
  return out;
}

class Simulation {
 public:
  Simulation(const SimulateOptions& options, const std::vector<TraceRequest>& trace)
      : options_(options),
        trace_(trace),
        count_(options.max_requests > 0
                   ? std::min<std::size_t>(trace.size(),
                                           static_cast<std::size_t>(options.max_requests))
                   : trace.size()),
        hasher_({1, 2}, static_cast<std::int32_t>(options.page_tokens)),
        router_({.num_replicas = options.replicas,
                 .page_size = static_cast<std::int32_t>(options.page_tokens)}),
        replicas_(static_cast<std::size_t>(options.replicas)),
        records_(count_) {
    // Without shared prefixes there is nothing to find: leave out what costs time.
    uses_prefixes_ = options.prefix_cache &&
                     std::any_of(trace.begin(),
                                 trace.begin() + static_cast<std::ptrdiff_t>(count_),
                                 [](const TraceRequest& r) { return r.prefix_tokens > 0; });
  }

  SimulateResult Run() {
    Begin();
    std::size_t next = 0;
    for (;;) {
      const double arrival_s = next < count_ ? Arrival(next) : kNever;
      const auto [replica, done_s] = Earliest();
      const double event_s = NextEvent(next < count_ || unfinished_ > 0);
      const double now_s = std::min({arrival_s, done_s, event_s});
      if (now_s == kNever) {
        break;
      }
      SetTime(now_s);
      if (now_s == event_s) {
        OnEvent();
      } else if (now_s == done_s) {
        CompleteStep(replica);
      } else {
        Submit(static_cast<std::uint32_t>(next++));
      }
    }
    return Finish();
  }

 private:
  double Arrival(std::size_t i) const { return trace_[i].arrival_s / options_.rate_scale; }
  void SetTime(double now_s) {
    now_s_ = now_s;
    clock_.AdvanceNs(static_cast<std::int64_t>(now_s * kNsPerSecond) - clock_.NowNs());
  }

  // ---- replicas

  void Begin() {
    const int serving = options_.autoscale.min_replicas > 0 ? options_.autoscale.min_replicas
                                                            : options_.replicas - options_.spares;
    for (int i = 0; i < options_.replicas; ++i) {
      router_.SetAvailable(i, false);
      if (i < serving) {
        Serve(i);
      }
    }
    next_look_s_ = options_.autoscale.min_replicas > 0 ? options_.autoscale.period_s : kNever;
    loss_s_ = options_.lose_node_at_s >= 0 ? options_.lose_node_at_s : kNever;
  }

  Replica& At(int index) { return replicas_[static_cast<std::size_t>(index)]; }

  void Start(int index, double seconds) {
    Replica& replica = At(index);
    replica.state = State::kStarting;
    replica.since_s = now_s_;
    replica.ready_s = now_s_ + seconds;
  }

  void Serve(int index) {
    Replica& replica = At(index);
    if (replica.state == State::kOff) {
      replica.since_s = now_s_;
    }
    replica.state = State::kServing;
    engine::SchedulerOptions scheduler;
    scheduler.num_groups = options_.replica.groups;
    scheduler.num_stages = static_cast<std::int32_t>(options_.replica.stages.size());
    scheduler.max_in_flight = scheduler.num_stages + 1;
    scheduler.page_size = static_cast<std::int32_t>(options_.page_tokens);
    scheduler.num_pages = options_.replica.kv_tokens / options_.page_tokens;
    scheduler.max_num_seqs = static_cast<std::int32_t>(options_.replica.max_num_seqs);
    scheduler.max_batched_tokens = static_cast<std::int32_t>(options_.replica.max_batched_tokens);
    scheduler.max_model_len = options_.replica.kv_tokens;
    scheduler.max_waiting = options_.max_waiting;
    scheduler.prefix_cache = uses_prefixes_;
    replica.scheduler = std::make_unique<engine::Scheduler>(scheduler, clock_, hasher_);
    replica.stage_free_s.assign(options_.replica.stages.size(), now_s_);
    router_.SetAvailable(index, true);
  }

  void Leave(int index, State state) {
    Replica& replica = At(index);
    if (replica.scheduler != nullptr) {
      AddStats(replica.scheduler->Stats());
    }
    if (replica.state != State::kOff && replica.state != State::kLost) {
      replica_s_ += now_s_ - replica.since_s;
    }
    replica.state = state;
    replica.scheduler.reset();
    replica.flights.clear();
    router_.SetAvailable(index, false);
  }

  int Count(State state) const {
    return static_cast<int>(
        std::ranges::count_if(replicas_, [&](const Replica& r) { return r.state == state; }));
  }

  // ---- requests

  std::vector<std::int32_t> Prompt(std::uint32_t index) const {
    const TraceRequest& request = trace_[index];
    std::vector<std::int32_t> prompt(static_cast<std::size_t>(request.input_tokens));
    const auto shared = static_cast<std::size_t>(std::max(0, request.prefix_tokens));
    const auto mix = [](std::uint64_t key, std::size_t i) {
      return static_cast<std::int32_t>((key * 0x9e3779b1U + i * 0x85ebca6bU) & 0x7fffffffU);
    };
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      prompt[i] = i < shared ? mix(static_cast<std::uint64_t>(request.prefix_id) << 32U, i)
                             : mix(index + 1U, i);
    }
    return prompt;
  }

  std::int64_t Cost(std::uint32_t index) const {
    return std::int64_t{trace_[index].input_tokens} + trace_[index].output_tokens;
  }

  void Submit(std::uint32_t index) {
    engine::SequenceRequest request;
    request.id = index + 1ULL + (std::uint64_t{submits_++} << 32U);
    request.prompt = Prompt(index);
    request.max_tokens = trace_[index].output_tokens;
    request.ignore_eos = true;
    if (uses_prefixes_) {
      hasher_.Extend(request.prompt, "", &request.prefix_keys);
    }
    const auto choice = router_.Route(request.prefix_keys, Cost(index));
    if (choice.replica < 0) {
      records_[index].refused = true;
      return;
    }
    Replica& replica = At(choice.replica);
    if (!replica.scheduler->Add(std::move(request)).ok()) {
      router_.Finished(choice.replica, Cost(index));
      records_[index].refused = true;
      return;
    }
    records_[index].replica = static_cast<std::int16_t>(choice.replica);
    ++unfinished_;
    Pump(choice.replica);
  }

  // ---- steps

  /// Plans what can be planned; each step goes through the stages behind those before it.
  void Pump(int index) {
    Replica& replica = At(index);
    while (std::optional<spec::StepPlan> plan = replica.scheduler->Schedule()) {
      Flight flight;
      flight.step = plan->step;
      flight.sampled = TakeSpare();
      double at_s = now_s_;
      for (std::size_t stage = 0; stage < options_.replica.stages.size(); ++stage) {
        const cost::StageCost& costs = options_.replica.stages[stage];
        cost::StepTime slowest;
        for (int group = 0; group < options_.replica.groups; ++group) {
          const cost::StepWork work = cost::WorkOf(costs, *plan, group);
          const cost::StepTime time =
              cost::TimeOf(costs, work, options_.replica.device, options_.replica.links);
          slowest = time.total > slowest.total ? time : slowest;
        }
        const double begin_s = std::max(at_s, replica.stage_free_s[stage]);
        replica.stage_free_s[stage] = begin_s + slowest.total;
        at_s = begin_s + slowest.total + slowest.handover;
      }
      for (const spec::RowWork& row : plan->work) {
        if (row.sample) {
          auto& token = flight.sampled[static_cast<std::size_t>(row.group)].emplace_back();
          token.row = row.row;
          token.group = row.group;
          token.token = 1;
        }
      }
      flight.done_s = at_s;
      ++steps_;
      rows_ += static_cast<double>(plan->work.size());
      replica.flights.push_back(std::move(flight));
    }
  }

  std::vector<std::vector<spec::SampledToken>> TakeSpare() {
    if (spare_.empty()) {
      return std::vector<std::vector<spec::SampledToken>>(
          static_cast<std::size_t>(options_.replica.groups));
    }
    auto taken = std::move(spare_.back());
    spare_.pop_back();
    return taken;
  }

  std::pair<int, double> Earliest() const {
    int earliest = -1;
    double done_s = kNever;
    for (std::size_t i = 0; i < replicas_.size(); ++i) {
      const auto& flights = replicas_[i].flights;
      if (!flights.empty() && flights.front().done_s < done_s) {
        done_s = flights.front().done_s;
        earliest = static_cast<int>(i);
      }
    }
    return {earliest, done_s};
  }

  void CompleteStep(int index) {
    Replica& replica = At(index);
    Flight flight = std::move(replica.flights.front());
    replica.flights.pop_front();
    for (std::size_t group = 0; group < flight.sampled.size(); ++group) {
      spec::StepResult result;
      result.generation = 0;
      result.step = flight.step;
      result.group = static_cast<std::int32_t>(group);
      std::swap(result.sampled, flight.sampled[group]);
      const Result<> completed = replica.scheduler->Complete(result);
      INFERD_CHECK(completed.ok());  // The plan was obeyed.
      std::swap(result.sampled, flight.sampled[group]);
      flight.sampled[group].clear();
    }
    spare_.push_back(std::move(flight.sampled));
    replica.scheduler->TakeEvents(&events_);
    for (const engine::TokenEvent& event : events_) {
      OnToken(index, event);
    }
    if (replica.state == State::kDraining && !replica.scheduler->has_unfinished()) {
      Leave(index, State::kOff);
      return;
    }
    Pump(index);
  }

  void OnToken(int replica, const engine::TokenEvent& event) {
    const auto index = static_cast<std::uint32_t>((event.id & 0xffffffffU) - 1);
    Record& record = records_[index];
    const double since = now_s_ - Arrival(index);
    if (event.token >= 0) {
      ++record.tokens;
      if (event.first) {
        record.first_s = static_cast<float>(since);
      }
    }
    if (event.finish != engine::FinishReason::kNone) {
      record.end_s = static_cast<float>(since);
      record.refused = event.finish != engine::FinishReason::kLength;
      --unfinished_;
      router_.Finished(replica, Cost(index));
      last_end_s_ = now_s_;
    }
  }

  // ---- what happens beside requests and steps

  double NextEvent(bool more) const {
    double next_s = more ? std::min(next_look_s_, loss_s_) : kNever;
    for (const Replica& replica : replicas_) {
      if (replica.state == State::kStarting) {
        next_s = std::min(next_s, replica.ready_s);
      }
    }
    return next_s;
  }

  void OnEvent() {
    for (int i = 0; i < options_.replicas; ++i) {
      if (At(i).state == State::kStarting && At(i).ready_s <= now_s_) {
        Serve(i);
      }
    }
    if (loss_s_ <= now_s_) {
      loss_s_ = kNever;
      LoseNode();
    }
    if (next_look_s_ <= now_s_) {
      next_look_s_ = now_s_ + options_.autoscale.period_s;
      Autoscale();
    }
  }

  void LoseNode() {
    std::vector<std::uint32_t> again;
    int lost = 0;
    for (int i = 0; i < options_.replicas; ++i) {
      const bool spare = i >= options_.replicas - options_.spares;
      const int node = options_.node_of_replica.empty()
                           ? i
                           : options_.node_of_replica[static_cast<std::size_t>(i)];
      if (node != options_.lost_node || spare || At(i).state == State::kOff) {
        continue;
      }
      for (std::uint32_t index = 0; index < records_.size(); ++index) {
        const Record& record = records_[index];
        if (record.replica == i && record.end_s < 0 && !record.refused) {
          again.push_back(index);
          router_.Finished(i, Cost(index));
        }
      }
      Leave(i, State::kLost);
      ++lost;
    }
    for (int i = options_.replicas - options_.spares; i < options_.replicas && lost > 0; ++i) {
      Start(i, options_.prewarmed ? kPrewarmedStartSeconds : options_.cold_start_s);
      --lost;
    }
    // The gateway tries them again elsewhere, from the beginning.
    std::ranges::sort(again);
    for (const std::uint32_t index : again) {
      Record& record = records_[index];
      record.tokens = 0;
      record.first_s = -1;
      record.retried = true;
      --unfinished_;
      ++retried_;
      Submit(index);
    }
  }

  void Autoscale() {
    const AutoscalePolicy& policy = options_.autoscale;
    double waiting = 0;
    double running = 0;
    for (const Replica& replica : replicas_) {
      if (replica.state == State::kServing) {
        const engine::SchedulerStats stats = replica.scheduler->Stats();
        waiting += static_cast<double>(stats.waiting);
        running += static_cast<double>(stats.running);
      }
    }
    const int serving = Count(State::kServing);
    const int coming = Count(State::kStarting);
    if (waiting > policy.up_waiting * std::max(1, serving)) {
      calm_since_s_ = kNever;
      // As many as would bring the queue down to the mark, as an HPA does; starting ones count.
      const int wanted = std::min(
          options_.replicas,
          static_cast<int>(
              std::ceil(serving * std::min(2.0, 1 + waiting / policy.up_waiting / serving))));
      for (int i = 0, more = wanted - serving - coming; i < options_.replicas && more > 0; ++i) {
        if (At(i).state == State::kOff) {
          Start(i, options_.cold_start_s);
          --more;
        }
      }
      return;
    }
    const double rows =
        static_cast<double>(options_.replica.max_num_seqs) * options_.replica.groups;
    const bool calm = waiting == 0 && running < policy.down_running * rows * (serving - 1);
    calm_since_s_ = calm ? std::min(calm_since_s_, now_s_) : kNever;
    if (calm && serving > policy.min_replicas && now_s_ - calm_since_s_ >= policy.down_delay_s) {
      calm_since_s_ = now_s_;
      Drain();
    }
  }

  void Drain() {
    for (int i = options_.replicas - 1; i >= 0; --i) {
      Replica& replica = At(i);
      if (replica.state != State::kServing) {
        continue;
      }
      if (replica.scheduler->has_unfinished()) {
        replica.state = State::kDraining;
        router_.SetAvailable(i, false);
      } else {
        Leave(i, State::kOff);
      }
      return;
    }
  }

  // ---- the end

  void AddStats(const engine::SchedulerStats& stats) {
    preemptions_ += stats.preemptions;
    prefix_queries_ += static_cast<double>(stats.prefix_query_tokens);
    prefix_hits_ += static_cast<double>(stats.prefix_hit_tokens);
  }

  SimulateResult Finish() {
    for (int i = 0; i < options_.replicas; ++i) {
      if (At(i).state != State::kOff && At(i).state != State::kLost) {
        Leave(i, State::kOff);
      }
    }
    SimulateResult out;
    std::vector<float> ttft;
    std::vector<float> tpot;
    std::vector<float> latency;
    std::int64_t attained = 0;
    double tokens = 0;
    for (const Record& record : records_) {
      out.refused += record.refused ? 1 : 0;
      if (record.refused || record.end_s < 0) {
        continue;
      }
      ++out.completed;
      tokens += record.tokens;
      const float per_token = record.tokens > 1 ? (record.end_s - record.first_s) /
                                                      static_cast<float>(record.tokens - 1)
                                                : 0;
      ttft.push_back(record.first_s);
      latency.push_back(record.end_s);
      if (record.tokens > 1) {
        tpot.push_back(per_token);
      }
      const Targets& targets = options_.targets;
      attained += (targets.ttft_s <= 0 || record.first_s <= targets.ttft_s) &&
                          (targets.itl_s <= 0 || per_token <= targets.itl_s)
                      ? 1
                      : 0;
    }
    out.requests = static_cast<std::int64_t>(count_);
    out.retried = retried_;
    out.duration_s = last_end_s_;
    const double span_s = Arrival(count_ - 1) - Arrival(0);
    out.rate = span_s > 0 ? static_cast<double>(count_ - 1) / span_s : 0;
    out.tokens_per_s = last_end_s_ > 0 ? tokens / (last_end_s_ - Arrival(0)) : 0;
    out.ttft_s = Summarise(&ttft);
    out.tpot_s = Summarise(&tpot);
    out.latency_s = Summarise(&latency);
    out.attained = static_cast<double>(attained) / static_cast<double>(count_);
    out.replica_hours = replica_s_ / 3600;
    out.preemptions = preemptions_;
    out.steps = steps_;
    out.mean_rows = steps_ > 0 ? rows_ / static_cast<double>(steps_) : 0;
    out.prefix_hit = prefix_queries_ > 0 ? prefix_hits_ / prefix_queries_ : 0;
    return out;
  }

  const SimulateOptions& options_;
  const std::vector<TraceRequest>& trace_;
  const std::size_t count_;
  const engine::PrefixHasher hasher_;
  engine::ReplicaRouter router_;
  base::FakeClock clock_;
  double now_s_ = 0;
  std::vector<Replica> replicas_;
  std::vector<Record> records_;
  bool uses_prefixes_ = false;
  std::uint32_t submits_ = 0;
  std::int64_t unfinished_ = 0;
  double last_end_s_ = 0;
  double next_look_s_ = kNever;
  double calm_since_s_ = kNever;
  double loss_s_ = kNever;
  double replica_s_ = 0;
  std::int64_t retried_ = 0;
  std::int64_t steps_ = 0;
  double rows_ = 0;
  std::int64_t preemptions_ = 0;
  double prefix_queries_ = 0, prefix_hits_ = 0;
  std::vector<std::vector<std::vector<spec::SampledToken>>> spare_;
  std::vector<engine::TokenEvent> events_;
};

Result<> Check(const SimulateOptions& options, const std::vector<TraceRequest>& trace) {
  if (trace.empty()) {
    return InvalidArgument("the trace has no request");
  }
  if (options.replicas < 1 || options.replicas > kMaxReplicas) {
    return InvalidArgument("{} replicas; 1 to {} can be simulated", options.replicas, kMaxReplicas);
  }
  if (options.spares < 0 || options.spares >= options.replicas ||
      options.autoscale.min_replicas > options.replicas) {
    return InvalidArgument("{} spares and at least {} of {} replicas are not possible",
                           options.spares,
                           options.autoscale.min_replicas,
                           options.replicas);
  }
  if (!options.node_of_replica.empty() &&
      options.node_of_replica.size() != static_cast<std::size_t>(options.replicas)) {
    return InvalidArgument(
        "nodes of {} replicas are given for {}", options.node_of_replica.size(), options.replicas);
  }
  if (!(options.rate_scale > 0) || options.replica.stages.empty() ||
      options.replica.kv_tokens < options.page_tokens) {
    return InvalidArgument("a simulation needs stages, a KV cache and a rate above 0");
  }
  return {};
}

}  // namespace

Result<SimulateResult> Simulate(const SimulateOptions& options,
                                const std::vector<TraceRequest>& trace) {
  INFERD_TRY(Check(options, trace));
  const std::int64_t began_ns = base::SteadyClock::Get().NowNs();
  Simulation simulation(options, trace);
  SimulateResult result = simulation.Run();
  result.wall_s = static_cast<double>(base::SteadyClock::Get().NowNs() - began_ns) / kNsPerSecond;
  return result;
}

}  // namespace inferd::plan
