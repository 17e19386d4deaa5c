// SPDX-License-Identifier: Apache-2.0
// Thousands of seeded random schedules against the fake replica: outputs equal the undisturbed run,
// pages add up, budgets hold, every sequence ends. A failing seed names itself; INFERD_SEED=n runs
// it alone, INFERD_SEEDS=n runs n of them.
#include "base/clock.h"
#include "engine/scheduler.h"
#include "unit/engine/fake_replica.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace inferd::engine {
namespace {

constexpr std::uint64_t kNanSeed = 424242;
constexpr int kDefaultSeeds = 3000;

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::int64_t Between(std::int64_t low, std::int64_t high) {
    state_ = Mix(state_, 77);
    return low +
           static_cast<std::int64_t>((state_ >> 1) % static_cast<std::uint64_t>(high - low + 1));
  }
  bool OneIn(std::int64_t n) { return Between(1, n) == 1; }

 private:
  std::uint64_t state_;
};

/// What the client side knows of a sequence.
struct Client {
  SequenceRequest request;
  std::vector<std::int32_t> expected;
  FinishReason expected_finish = FinishReason::kNone;
  std::vector<std::int32_t> output;
  std::int64_t num_prompt_logprobs = 1;
  bool cancelled = false;
  FinishReason finish = FinishReason::kNone;
};

SchedulerOptions RandomOptions(Random* random) {
  SchedulerOptions options;
  options.num_groups = static_cast<std::int32_t>(random->Between(1, 3));
  options.num_stages = static_cast<std::int32_t>(random->OneIn(3) ? random->Between(2, 3) : 1);
  options.max_in_flight = static_cast<std::int32_t>(random->Between(1, 4));
  options.page_size = static_cast<std::int32_t>(random->Between(1, 6));
  options.num_pages = random->Between(12, 48) / options.page_size + 2;
  options.max_num_seqs = static_cast<std::int32_t>(random->Between(1, 6));
  options.max_batched_tokens =
      static_cast<std::int32_t>(random->OneIn(3) ? random->Between(2, 5) : random->Between(6, 40));
  options.target_itl_ns =
      random->OneIn(3) ? random->Between(2, 80) : 0;  // the clock's steps are 1 to 20
  options.max_model_len = random->Between(10, 60);
  options.max_waiting = random->Between(3, 30);
  options.prefix_cache = !random->OneIn(4);
  options.prompt_lookup.max_ngram = static_cast<std::int32_t>(random->Between(1, 4));
  options.prompt_lookup.min_ngram = 1;
  options.prompt_lookup.adaptive = random->OneIn(4);
  options.max_speculative_rows = static_cast<std::int32_t>(random->Between(1, 12));
  return options;
}

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed)
      : random_(seed),
        options_(RandomOptions(&random_)),
        hasher_({seed, 1}, options_.page_size),
        scheduler_(options_, clock_, hasher_),
        vocab_(random_.OneIn(3) ? 3 : 60),
        replica_(options_, vocab_) {
    replica_.set_nan_seed(kNanSeed);
    faults_ = random_.OneIn(3);
    deadlines_ = random_.OneIn(3);
    num_requests_ = random_.OneIn(25) ? random_.Between(100, 200) : random_.Between(5, 25);
  }

  /// Empty if all went well.
  std::string Run() {
    for (std::int64_t tick = 0; failure_.empty(); ++tick) {
      if (next_id_ > static_cast<std::uint64_t>(num_requests_) && !scheduler_.has_unfinished() &&
          scheduler_.num_in_flight() == 0) {
        break;
      }
      if (tick > 40'000) {
        Fail("not finished after {} ticks", tick);
      }
      Act();
      Check();
    }
    if (failure_.empty()) {
      CheckEnd();
    }
    return failure_;
  }

  const SchedulerStats stats() const { return scheduler_.Stats(); }

 private:
  template <class... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (failure_.empty()) {
      failure_ = fmt::format(format, std::forward<Args>(args)...);
    }
  }

  void Act() {
    clock_.AdvanceNs(random_.Between(1, 20));
    const std::int64_t dice = random_.Between(1, 100);
    if (dice <= 15) {
      AddRequest();
    } else if (dice <= 18) {
      Cancel();
    } else if (dice == 19 && faults_ && random_.OneIn(3)) {
      scheduler_.Reset(++generation_);
      constrained_rows_.clear();
      masks_due_.clear();
      masks_asked_.clear();
      replica_.Restart(generation_);
    } else if (dice <= 60) {
      Schedule();
    } else {
      Deliver();
    }
    scheduler_.TakeEvents(&events_);
    for (const TokenEvent& event : events_) {
      Take(event);
    }
    scheduler_.TakeMaskRequests(&mask_requests_);
    for (const MaskRequest& request : mask_requests_) {
      Take(request);
    }
  }

  /// Samples of constrained rows, which need a mask each.
  void NoteConstrained(const spec::StepPlan& plan) {
    for (const spec::OpenRow& open : plan.open_rows) {
      constrained_rows_[{open.group, open.row}] = open.constrained;
    }
    for (const spec::RowWork& work : plan.work) {
      if (work.sample && constrained_rows_[{work.group, work.row}]) {
        masks_due_.insert({plan.step, work.group, work.row});
      }
    }
  }

  void Take(const MaskRequest& request) {
    const std::tuple key(request.step, request.group, request.row);
    if (!masks_due_.contains(key) || !masks_asked_.insert(key).second) {
      Fail("a mask is asked for step {} row {}, which needs none", request.step, request.row);
      return;
    }
    const Client& client = clients_.at(request.id);
    if (!client.request.constrained) {
      Fail("a mask is asked for sequence {}, which is not constrained", request.id);
    }
    if (request.wanted != (client.finish == FinishReason::kNone)) {
      Fail("a mask of sequence {} is wanted: {}", request.id, request.wanted);
    }
    if (request.wanted && request.num_output != static_cast<std::int64_t>(client.output.size())) {
      Fail("a mask for output token {} of sequence {}, which has {}",
           request.num_output,
           request.id,
           client.output.size());
    }
  }

  /// A sampler would have waited for the masks of a step before it answers.
  void CheckMasksOf(const spec::StepResult& result) {
    for (auto it = masks_due_.begin(); it != masks_due_.end();) {
      const auto [step, group, row] = *it;
      if (step != result.step || group != result.group) {
        ++it;
        continue;
      }
      if (masks_asked_.erase(*it) == 0) {
        Fail("no mask was asked for step {} row {}", step, row);
      }
      it = masks_due_.erase(it);
    }
  }

  void Schedule() {
    const bool was_idle = scheduler_.num_in_flight() == 0;
    const bool was_unfinished = scheduler_.has_unfinished();
    auto plan = scheduler_.Schedule();
    if (plan.has_value()) {
      NoteConstrained(*plan);
      replica_.Run(*plan);
    } else if (was_idle && was_unfinished && scheduler_.has_unfinished()) {
      Fail("nothing to run and nothing in flight, but {} running and {} waiting",
           scheduler_.Stats().running,
           scheduler_.Stats().waiting);
    }
    if (scheduler_.num_in_flight() > options_.max_in_flight) {
      Fail("{} steps in flight", scheduler_.num_in_flight());
    }
  }

  void Deliver() {
    auto& results =
        replica_.results(static_cast<std::int32_t>(random_.Between(0, options_.num_groups - 1)));
    if (results.empty()) {
      return;
    }
    if (random_.OneIn(20)) {
      spec::StepResult stale = results.front();
      stale.generation += 17;
      if (!scheduler_.Complete(stale).ok()) {
        Fail("a stale result is an error");
      }
    }
    CheckMasksOf(results.front());
    const Result<> result = scheduler_.Complete(results.front());
    if (!result.ok()) {
      Fail("{}", result.error().message());
    }
    results.pop_front();
  }

  SequenceRequest MakeRequest() {
    SequenceRequest request;
    const std::int64_t length = random_.Between(1, 30);
    // Few distinct prompts, so that prefixes are shared.
    const std::int64_t family = random_.Between(0, 2);
    for (std::int64_t i = 0; i < length; ++i) {
      request.prompt.push_back(static_cast<std::int32_t>(
          Mix(static_cast<std::uint64_t>(family), static_cast<std::uint64_t>(i)) %
          static_cast<std::uint64_t>(vocab_)));
    }
    if (random_.OneIn(2)) {
      request.prompt.back() = static_cast<std::int32_t>(random_.Between(0, vocab_ - 1));
    }
    request.sampling.seed = static_cast<std::uint64_t>(random_.Between(1, 3));
    if (random_.OneIn(40)) {
      request.sampling.seed = kNanSeed;
    }
    request.max_tokens = random_.OneIn(15) ? 0 : random_.Between(1, 30);
    request.min_tokens = random_.OneIn(4) ? random_.Between(0, 10) : 0;
    request.ignore_eos = random_.OneIn(3);
    request.constrained = random_.OneIn(3);
    request.num_speculative_tokens =
        random_.OneIn(2) ? static_cast<std::int32_t>(random_.Between(1, 5)) : 0;
    request.eos_tokens = {0, 1};
    if (random_.OneIn(3)) {
      request.stop_tokens = {2};
    }
    request.tenant = random_.OneIn(2) ? "t" + std::to_string(random_.Between(0, 1)) : "";
    request.user = random_.OneIn(2) ? "u" + std::to_string(random_.Between(0, 2)) : "";
    request.priority = random_.OneIn(3) ? static_cast<std::int32_t>(random_.Between(-2, 2)) : 0;
    if (random_.OneIn(3)) {
      request.cache_salt = "tenant";
    }
    if (random_.OneIn(8)) {
      request.sampling.prompt_logprobs = 0;
    }
    if (deadlines_ && random_.OneIn(3)) {
      request.queue_deadline_ns = clock_.NowNs() + random_.Between(1, 300);
    }
    if (deadlines_ && random_.OneIn(4)) {
      request.deadline_ns = clock_.NowNs() + random_.Between(1, 1500);
    }
    return request;
  }

  void AddRequest() {
    if (next_id_ > static_cast<std::uint64_t>(num_requests_)) {
      return;
    }
    SequenceRequest request = MakeRequest();
    const std::int64_t n = random_.OneIn(5) ? random_.Between(2, 4) : 1;
    const std::uint64_t fork_key = n > 1 ? next_id_ : 0;
    for (std::int64_t i = 0; i < n; ++i) {
      request.id = next_id_++;
      request.fork_key = fork_key;
      request.sampling.seed += static_cast<std::uint64_t>(i) * 10;
      const auto length = static_cast<std::int64_t>(request.prompt.size());
      const std::int64_t room = request.max_tokens > 0 ? 1 : 0;
      const bool fits = length + room <= scheduler_.max_sequence_tokens();
      if (random_.OneIn(3)) {
        request.prefix_keys.clear();
        hasher_.Extend(request.prompt, request.cache_salt, &request.prefix_keys);
      }
      const Result<> result = scheduler_.Add(request);
      if (!fits && (result.ok() || result.error().code() != Code::kInvalidArgument)) {
        Fail("a prompt of {} tokens was not refused", length);
      }
      if (fits && !result.ok() && result.error().code() != Code::kResourceExhausted) {
        Fail("refused: {}", result.error().message());
      }
      if (result.ok()) {
        Client client;
        client.request = request;
        client.expected = UndisturbedOutput(
            request, scheduler_.max_sequence_tokens(), vocab_, &client.expected_finish);
        if (request.sampling.seed == kNanSeed && request.max_tokens > 0) {
          client.expected.clear();
          client.expected_finish = FinishReason::kError;
        }
        clients_.emplace(request.id, std::move(client));
      }
    }
  }

  void Cancel() {
    if (next_id_ == 1) {
      return;
    }
    const auto id =
        static_cast<std::uint64_t>(random_.Between(1, static_cast<std::int64_t>(next_id_) - 1));
    const auto it = clients_.find(id);
    if (it != clients_.end()) {
      it->second.cancelled = true;
    }
    scheduler_.Cancel(id);
  }

  void Take(const TokenEvent& event) {
    const auto it = clients_.find(event.id);
    if (it == clients_.end()) {
      Fail("event for unknown sequence {}", event.id);
      return;
    }
    Client& client = it->second;
    if (client.finish != FinishReason::kNone) {
      Fail("sequence {} has an event after its last", event.id);
    }
    if (!event.prompt_logprobs.empty()) {
      TakePromptLogprobs(event, &client);
    }
    if (event.token >= 0) {
      if (event.first != client.output.empty()) {
        Fail("sequence {}: first is {} at output {}", event.id, event.first, client.output.size());
      }
      client.output.push_back(event.token);
      const std::size_t n = client.output.size();
      if (n > client.expected.size() || client.expected[n - 1] != event.token) {
        Fail("sequence {}: output {} is wrong", event.id, n - 1);
      }
    }
    client.finish = event.finish;
    if (event.finish != FinishReason::kNone) {
      CheckFinish(event, client);
    }
  }

  void TakePromptLogprobs(const TokenEvent& event, Client* client) {
    if (event.prompt_first != client->num_prompt_logprobs) {
      Fail("sequence {}: prompt logprobs from {}, expected {}",
           event.id,
           event.prompt_first,
           client->num_prompt_logprobs);
    }
    std::uint64_t sum = 0;
    const auto& prompt = client->request.prompt;
    for (std::int64_t i = 0; i < event.prompt_first; ++i) {
      sum += KvOf(prompt[static_cast<std::size_t>(i)], i, sum);
    }
    for (const spec::SampledToken& token : event.prompt_logprobs) {
      const std::int64_t position = client->num_prompt_logprobs++;
      const std::int32_t expected = prompt[static_cast<std::size_t>(position)];
      if (token.token != expected || token.logprob != PromptLogprobOf(sum, expected)) {
        Fail("sequence {}: wrong prompt logprob at {}", event.id, position);
      }
      sum += KvOf(expected, position, sum);
    }
  }

  void CheckFinish(const TokenEvent& event, const Client& client) {
    const bool timed_out =
        event.error.has_value() && event.error->code() == Code::kDeadlineExceeded;
    if (timed_out) {
      const SequenceRequest& request = client.request;
      const bool queue = request.queue_deadline_ns != 0 &&
                         clock_.NowNs() >= request.queue_deadline_ns && client.output.empty();
      const bool whole = request.deadline_ns != 0 && clock_.NowNs() >= request.deadline_ns;
      if (!queue && !whole) {
        Fail("sequence {} timed out too early", event.id);
      }
      return;
    }
    if (event.finish == FinishReason::kAbort) {
      if (!client.cancelled) {
        Fail("sequence {} was aborted by nobody", event.id);
      }
      return;
    }
    if (event.finish != client.expected_finish || client.output != client.expected) {
      Fail("sequence {} ended with {} after {} tokens, expected {} after {}",
           event.id,
           static_cast<int>(event.finish),
           client.output.size(),
           static_cast<int>(client.expected_finish),
           client.expected.size());
    }
    const bool asked = client.request.sampling.prompt_logprobs >= 0;
    if (asked &&
        client.num_prompt_logprobs < static_cast<std::int64_t>(client.request.prompt.size())) {
      Fail("sequence {} got {} prompt logprobs", event.id, client.num_prompt_logprobs);
    }
  }

  void Check() {
    if (!replica_.problem().empty()) {
      Fail("{}", replica_.problem());
    }
    const Result<> audit = scheduler_.Audit();
    if (!audit.ok()) {
      Fail("{}", audit.error().message());
    }
    const SchedulerStats stats = scheduler_.Stats();
    if (stats.kv_pages_free + stats.kv_pages_cached + stats.kv_pages_used != stats.kv_pages_total) {
      Fail("pages do not add up");
    }
  }

  void CheckEnd() {
    for (const auto& [id, client] : clients_) {
      if (client.finish == FinishReason::kNone) {
        Fail("sequence {} has no last event", id);
      }
    }
    const SchedulerStats stats = scheduler_.Stats();
    if (stats.kv_pages_used != 0 || stats.running != 0 || stats.waiting != 0) {
      Fail("idle, but {} pages used, {} running, {} waiting",
           stats.kv_pages_used,
           stats.running,
           stats.waiting);
    }
    std::int64_t finished = 0;
    for (const std::int64_t count : stats.finished) {
      finished += count;
    }
    if (finished != static_cast<std::int64_t>(clients_.size())) {
      Fail("{} finished of {}", finished, clients_.size());
    }
  }

  Random random_;
  SchedulerOptions options_;
  base::FakeClock clock_;
  PrefixHasher hasher_;
  Scheduler scheduler_;
  const std::int32_t vocab_;  // with a small one guesses are often right
  FakeReplica replica_;
  bool faults_ = false;
  bool deadlines_ = false;
  std::int64_t num_requests_ = 0;
  std::uint64_t next_id_ = 1;
  std::uint64_t generation_ = 0;
  std::map<std::uint64_t, Client> clients_;
  std::vector<TokenEvent> events_;
  std::vector<MaskRequest> mask_requests_;
  std::map<std::pair<std::int32_t, std::int32_t>, bool> constrained_rows_;  // by group and row
  using SampleKey = std::tuple<std::int64_t, std::int32_t, std::int32_t>;   // step, group, row
  std::set<SampleKey> masks_due_, masks_asked_;
  std::string failure_;
};

std::int64_t FromEnvironment(const char* name, std::int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

TEST(SchedulerSimulation, RandomSchedulesEqualTheUndisturbedRun) {
  const std::int64_t only = FromEnvironment("INFERD_SEED", 0);
  const std::int64_t num_seeds = only != 0 ? 1 : FromEnvironment("INFERD_SEEDS", kDefaultSeeds);
  SchedulerStats sum;
  for (std::int64_t i = 1; i <= num_seeds; ++i) {
    const auto seed = static_cast<std::uint64_t>(only != 0 ? only : i);
    Simulation simulation(seed);
    const std::string failure = simulation.Run();
    ASSERT_EQ(failure, "") << "replay with INFERD_SEED=" << seed;
    const SchedulerStats stats = simulation.stats();
    sum.preemptions += stats.preemptions;
    sum.prefix_hit_tokens += stats.prefix_hit_tokens;
    sum.dropped_tokens += stats.dropped_tokens;
    sum.resets += stats.resets;
    sum.drafts += stats.drafts;
    sum.draft_tokens += stats.draft_tokens;
    sum.accepted_tokens += stats.accepted_tokens;
    for (std::size_t reason = 0; reason < sum.finished.size(); ++reason) {
      sum.finished[reason] += stats.finished[reason];
    }
  }
  if (num_seeds >= 1000) {
    // The simulation reaches what it is for.
    EXPECT_GT(sum.preemptions, num_seeds);
    EXPECT_GT(sum.prefix_hit_tokens, 10 * num_seeds);
    EXPECT_GT(sum.dropped_tokens, num_seeds / 2);
    EXPECT_GT(sum.resets, num_seeds / 4);
    EXPECT_GT(sum.drafts, num_seeds);
    EXPECT_GT(sum.draft_tokens, sum.drafts);
    EXPECT_GT(sum.accepted_tokens, sum.drafts / 8);
    EXPECT_LT(sum.accepted_tokens, sum.draft_tokens);
    for (std::size_t reason = 1; reason < sum.finished.size(); ++reason) {
      EXPECT_GT(sum.finished[reason], num_seeds / 10) << reason;
    }
  }
}

}  // namespace
}  // namespace inferd::engine
