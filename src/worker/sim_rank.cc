// SPDX-License-Identifier: Apache-2.0
#include "worker/sim_rank.h"

#include "base/clock.h"
#include "base/error.h"
#include "cost/cost_model.h"
#include "cost/sim_device.h"
#include "model/mask_box.h"
#include "spec/memory_ledger.h"
#include "store/shape.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace inferd::worker {
namespace {

constexpr double kNsPerSecond = 1e9;
constexpr std::int64_t kPageTokens = 32;
/// A step that was planned ahead begins when the one before it ends, even if this process woke a
/// little late: the lateness of sleeps must not add up.
constexpr std::int64_t kLateNs = 1'000'000;

/// What the sampler needs of a row: its prompt is the script.
struct Row {
  std::vector<std::int32_t> prompt;
  bool constrained = false;
  bool prompt_logprobs = false;
};

class SimRank final : public model::Rank {
 public:
  SimRank(const spec::LoadRequest& request,
          cost::SimDevice device,
          const cost::StageCost& stage,
          const spec::ModelSpec& served,
          std::int64_t hidden_size,
          const model::RankMemory& memory)
      : plan_(request.shard),
        device_(std::move(device)),
        stage_(stage),
        eos_ids_(served.eos_ids),
        hidden_size_(hidden_size),
        memory_(memory),
        rows_(static_cast<std::size_t>(request.max_num_seqs)),
        masks_(static_cast<std::size_t>(request.max_num_seqs)) {}

  Result<> Join(std::uint64_t generation, model::RankComms comms) override {
    {
      const std::lock_guard lock(mutex_);
      comms_ = std::move(comms);
      aborted_ = false;
    }
    generation_ = generation;
    last_step_ = -1;
    pending_.clear();
    std::ranges::fill(rows_, Row());
    masks_.Reset(generation);
    joined_ = true;
    return {};
  }

  Result<> Begin(const spec::StepPlan& plan) override {
    INFERD_ASSIGN(result_, RunStep(plan));
    under_way_ = true;
    return {};
  }
  bool MayBegin(const spec::StepPlan&) const override { return !under_way_; }
  Result<std::optional<spec::StepResult>> Finish() override {
    under_way_ = false;
    return std::exchange(result_, std::nullopt);
  }
  std::size_t num_under_way() const override { return under_way_ ? 1 : 0; }
  bool IsDone() override { return true; }
  void Drop() override { under_way_ = false; }

  void GiveMask(spec::TokenMask mask) override { masks_.Give(std::move(mask)); }

  void Abort() override {
    masks_.Abort();
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
    for (comm::Communicator* comm :
         {comms_.tp.get(), comms_.ep.get(), comms_.pp.get(), comms_.ids.get()}) {
      if (comm != nullptr) {
        comm->Abort();
      }
    }
  }

  bool broken() const override { return false; }
  std::int64_t page_tokens() const override { return kPageTokens; }
  model::RankMemory memory() const override { return memory_; }
  std::string Describe() const override {
    return fmt::format("rank {} on a simulated {}{}: layers [{}, {})",
                       plan_.rank,
                       device_.profile.name,
                       device_.model.empty() ? "" : " that runs " + device_.model,
                       plan_.layers.begin,
                       plan_.layers.end);
  }

 private:
  using Message = std::array<std::byte, 8>;

  bool Mine(const spec::RowWork& work) const { return work.group == plan_.group; }

  Result<std::optional<spec::StepResult>> RunStep(const spec::StepPlan& plan) {
    if (!joined_ || plan.generation != generation_ ||
        (last_step_ >= 0 && plan.step != last_step_ + 1)) {
      return FailedPrecondition("step {} of generation {} came after step {} of generation {}",
                                plan.step,
                                plan.generation,
                                last_step_,
                                generation_);
    }
    last_step_ = plan.step;
    INFERD_TRY(OpenRows(plan));
    const bool works = std::ranges::any_of(plan.work, [&](const auto& w) { return Mine(w); });
    const bool samples =
        std::ranges::any_of(plan.work, [&](const auto& w) { return Mine(w) && w.sample; });
    INFERD_TRY(AwaitInputs(plan, works));
    if (receives_ids() && samples) {
      pending_.push_back(plan.step);
    }
    INFERD_TRY(Spend(plan));
    if (!plan_.has_head) {
      INFERD_TRY(PassOn(works));
      return std::optional<spec::StepResult>();
    }
    if (!plan_.is_sampler()) {
      return std::optional<spec::StepResult>();
    }
    spec::StepResult result;
    result.generation = plan.generation;
    result.step = plan.step;
    result.group = plan_.group;
    result.compute_ns = spent_ns_;
    INFERD_TRY(Answer(plan, &result));
    if (samples) {
      INFERD_TRY(SendIds());
    }
    return std::optional<spec::StepResult>(std::move(result));
  }

  // As in model::Rank: the sampler's tokens go to the first-stage ranks that are not it.
  bool receives_ids() const {
    return plan_.has_embedding && !plan_.is_sampler() && comms_.ids != nullptr;
  }

  Result<> OpenRows(const spec::StepPlan& plan) {
    for (const spec::OpenRow& open : plan.open_rows) {
      if (open.group != plan_.group) {
        continue;
      }
      if (open.row < 0 || static_cast<std::size_t>(open.row) >= rows_.size() ||
          open.num_prompt_tokens < 1 ||
          static_cast<std::size_t>(open.num_prompt_tokens) > open.tokens.size()) {
        return InvalidArgument(
            "row {} with a prompt of {} tokens cannot be opened", open.row, open.num_prompt_tokens);
      }
      Row& row = rows_[static_cast<std::size_t>(open.row)];
      row.prompt.assign(open.tokens.begin(), open.tokens.begin() + open.num_prompt_tokens);
      row.constrained = open.constrained;
      row.prompt_logprobs = open.sampling.prompt_logprobs >= 0;
    }
    return {};
  }

  Result<> AwaitInputs(const spec::StepPlan& plan, bool works) {
    Message message{};
    if (!plan_.has_embedding) {
      return works ? comms_.pp->Recv(message, plan_.stage - 1) : Result<>();
    }
    if (!receives_ids()) {
      return {};
    }
    std::int64_t newest = plan.step - plan_.pp - 1;
    for (const spec::RowWork& work : plan.work) {
      newest = Mine(work) ? std::max(newest, work.input_step) : newest;
    }
    while (!pending_.empty() && pending_.front() <= newest) {
      INFERD_TRY(comms_.ids->Recv(message, 0));
      pending_.pop_front();
    }
    return {};
  }

  /// Waits for the predicted end of the step; with peers, for all of them.
  Result<> Spend(const spec::StepPlan& plan) {
    const cost::StepWork work = cost::WorkOf(stage_, plan, plan_.group);
    const cost::StepTime time = cost::TimeOf(stage_, work, device_.profile, {});
    spent_ns_ = std::llround((time.total + time.handover) * device_.slower * kNsPerSecond);
    const std::int64_t now_ns = base::SteadyClock::Get().NowNs();
    const bool follows = end_ns_ > 0 && now_ns - end_ns_ < kLateNs;
    end_ns_ = (follows ? end_ns_ : now_ns) + spent_ns_;
    if (end_ns_ > now_ns) {
      std::unique_lock lock(mutex_);
      const auto left = std::chrono::nanoseconds(end_ns_ - now_ns);
      if (changed_.wait_for(lock, left, [this] { return aborted_; })) {
        return Aborted("the step was aborted");
      }
    }
    for (comm::Communicator* group : {comms_.tp.get(), comms_.ep.get()}) {
      if (group != nullptr) {
        INFERD_TRY(group->Barrier());
      }
    }
    return {};
  }

  Result<> PassOn(bool works) {
    const Message message{};
    return works ? comms_.pp->Send(message, plan_.stage + 1) : Result<>();
  }

  Result<> SendIds() {
    if (comms_.ids == nullptr) {
      return {};
    }
    const Message message{};
    for (int peer = 1; peer < comms_.ids->size(); ++peer) {
      INFERD_TRY(comms_.ids->Send(message, peer));
    }
    return {};
  }

  Result<> Answer(const spec::StepPlan& plan, spec::StepResult* result) {
    for (const spec::RowWork& work : plan.work) {
      if (!Mine(work)) {
        continue;
      }
      const Row& row = rows_[static_cast<std::size_t>(work.row)];
      if (row.prompt_logprobs) {
        AddPromptLogprobs(row, work, result);
      }
      if (work.embed) {
        const auto size = static_cast<std::size_t>(hidden_size_);
        result->embeddings.push_back({work.row, work.group, std::vector<float>(size, 1.0F)});
      }
      if (!work.sample) {
        continue;
      }
      spec::SampledToken token;
      token.row = work.row;
      token.group = work.group;
      token.rank = 1;
      token.token = Script(row, work.start + work.count);
      if (row.constrained) {
        INFERD_ASSIGN(const spec::TokenMask mask,
                      masks_.Take(plan.step, work.row, comms_.step_deadline_ms));
        token.token = Allowed(mask, token.token);
      }
      result->sampled.push_back(std::move(token));
    }
    return {};
  }

  bool Ends(std::int32_t token) const {
    return std::ranges::find(eos_ids_, token) != eos_ids_.end();
  }

  /// The token at a position: the prompt's in turn, without those that end a text.
  std::int32_t Script(const Row& row, std::int64_t position) const {
    const auto count = static_cast<std::int64_t>(row.prompt.size());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t token = row.prompt[static_cast<std::size_t>((position + i) % count)];
      if (!Ends(token)) {
        return token;
      }
    }
    return 0;
  }

  /// What is nearest to the script and allowed; an end where one is, so that answers end.
  std::int32_t Allowed(const spec::TokenMask& mask, std::int32_t token) const {
    for (const std::int32_t end : eos_ids_) {
      if (mask.kind != spec::TokenMask::Kind::kAll && spec::Allows(mask, end)) {
        return end;
      }
    }
    if (spec::Allows(mask, token)) {
      return token;
    }
    std::int32_t first = 0;
    while (first < kMostTokens && !spec::Allows(mask, first)) {
      ++first;
    }
    return first;
  }

  static void AddPromptLogprobs(const Row& row,
                                const spec::RowWork& work,
                                spec::StepResult* result) {
    const auto count = static_cast<std::int64_t>(row.prompt.size());
    const std::int64_t first = work.start + 1;
    const std::int64_t end = std::min(work.start + work.count + 1, count);
    if (first >= end) {
      return;
    }
    spec::PromptLogprobs part;
    part.row = work.row;
    part.group = work.group;
    part.first = first;
    for (std::int64_t i = first; i < end; ++i) {
      spec::SampledToken token;
      token.row = work.row;
      token.group = work.group;
      token.token = row.prompt[static_cast<std::size_t>(i)];
      token.rank = 1;
      part.tokens.push_back(std::move(token));
    }
    result->prompt_logprobs.push_back(std::move(part));
  }

  static constexpr std::int32_t kMostTokens = 1 << 20;

  const spec::ShardPlan plan_;
  const cost::SimDevice device_;
  const cost::StageCost stage_;
  const std::vector<std::int32_t> eos_ids_;
  const std::int64_t hidden_size_;
  const model::RankMemory memory_;
  std::vector<Row> rows_;
  model::MaskBox masks_;
  std::mutex mutex_;  // Abort against Join and Spend
  std::condition_variable changed_;
  bool aborted_ = false;
  model::RankComms comms_;
  std::uint64_t generation_ = 0;
  std::int64_t last_step_ = -1;
  bool joined_ = false;
  std::deque<std::int64_t> pending_;  // steps whose tokens have not come yet
  std::int64_t end_ns_ = 0;           // of the last step
  std::int64_t spent_ns_ = 0;
  bool under_way_ = false;  // a step, and what it gave
  std::optional<spec::StepResult> result_;
};

}  // namespace

Result<std::unique_ptr<model::Rank>> MakeSimRank(const spec::LoadRequest& request) {
  INFERD_ASSIGN(cost::SimDevice device, cost::ParseSimDevice(request.device));
  INFERD_ASSIGN(const store::ModelShape served, store::ReadShape(request.model_path));
  store::ModelShape shape = served;
  if (!device.model.empty()) {
    INFERD_ASSIGN(shape, store::ReadShape(device.model));
  }
  const double kv_bytes = spec::KvBytesPerValue(request.kv_dtype, shape.spec);
  // One shard makes one stage, whichever it is.
  spec::ShardPlan only = request.shard;
  only.stage = 0;
  const std::vector<cost::StageCost> stages =
      cost::MakeStages(shape.spec, {only}, shape.bytes_per_weight, kv_bytes, device.profile);
  spec::LedgerOptions options;
  options.bytes_per_weight = shape.bytes_per_weight;
  options.kv_bytes_per_value = kv_bytes;
  options.max_batched_tokens = request.max_batched_tokens;
  options.max_num_seqs = request.max_num_seqs;
  options.max_model_len = request.max_model_len;
  INFERD_ASSIGN(const spec::MemoryLedger ledger,
                spec::MakeLedger(shape.spec, {request.shard}, options));
  const spec::RankLedger& rank = ledger.ranks.front();
  const model::RankMemory memory = {rank.weight_bytes,
                                    rank.activation_bytes + rank.collective_bytes,
                                    request.kv_pages * kPageTokens * rank.kv_bytes_per_token};
  return std::unique_ptr<model::Rank>(std::make_unique<SimRank>(
      request, std::move(device), stages.front(), served.spec, shape.spec.hidden_size, memory));
}

}  // namespace inferd::worker
