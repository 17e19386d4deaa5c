// SPDX-License-Identifier: Apache-2.0
// The replica of the rank tests (see rank_set.h).
#include "unit/model/rank_set.h"

#include "comm/nccl.h"
#include "unit/model/run_step.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace inferd::model {

Result<std::unique_ptr<RankSet>> RankSet::Make(const std::string& path,
                                               const RankSetOptions& options) {
  auto set = std::make_unique<RankSet>();
  set->options_ = options;
  INFERD_ASSIGN(const store::Model model, store::OpenModel(path));
  INFERD_ASSIGN(set->plans_, spec::PlanShards(model.spec, options.parallel, model.cut));
  for (const spec::ShardPlan& plan : set->plans_) {
    spec::LoadRequest request;
    request.model_path = path;
    request.shard = plan;
    request.max_num_seqs = options.max_num_seqs;
    request.max_batched_tokens = options.max_batched_tokens;
    request.max_model_len = options.max_model_len;
    request.kv_pages = options.kv_pages;
    request.threads = options.threads;
    request.device = options.device;
    if (options.exchange != Exchange::kHost) {
      request.device += ":" + std::to_string(plan.rank);  // NCCL wants a device for each
    }
    request.cuda_graph_sizes = options.cuda_graph_sizes;
    request.batch_invariant = options.batch_invariant;
    request.kv_dtype = options.kv_dtype;
    INFERD_ASSIGN(auto rank, Rank::Load(request, {}));
    set->ranks_.push_back(std::move(rank));
  }
  INFERD_TRY(set->Join(1));
  return set;
}

Result<> RankSet::Join(std::uint64_t generation) {
  std::vector<RankComms> comms = MakeComms(plans_);
  return OnThreads(ranks_.size(), &no_comms_, [&](std::size_t rank) -> Result<> {
    std::unique_ptr<comm::Communicator>& tp = comms[rank].tp;
    if (options_.exchange != Exchange::kHost && tp != nullptr) {
      comm::GroupOptions group;
      group.id = "tp";
      group.generation = generation;
      group.rank = tp->rank();
      group.size = tp->size();
      group.peer_memory = options_.exchange == Exchange::kPeers;
      INFERD_ASSIGN(tp, comm::JoinNccl(group, std::move(tp), *ranks_[rank]->queue(), true));
    }
    return ranks_[rank]->Join(generation, std::move(comms[rank]));
  });
}

Result<RankSet::Results> RankSet::OnRanks(
    const std::function<Result<>(Rank&, const Collect&)>& body) {
  Results results;
  std::mutex mutex;
  const auto collect = [&](std::optional<spec::StepResult> result) {
    if (result) {
      const std::lock_guard lock(mutex);
      results[{result->step, result->group}] = *std::move(result);
    }
  };
  INFERD_TRY(OnThreads(ranks_.size(), &no_comms_, [&](std::size_t rank) -> Result<> {
    Result<> ran = body(*ranks_[rank], collect);
    if (!ran.ok()) {
      for (auto& each : ranks_) {
        each->Abort();
      }
    }
    return ran;
  }));
  return results;
}

Result<RankSet::Results> RankSet::Run(const std::vector<spec::StepPlan>& plans) {
  return OnRanks([&](Rank& rank, const Collect& collect) -> Result<> {
    for (const spec::StepPlan& plan : plans) {
      INFERD_ASSIGN(auto result, RunStep(rank, plan));
      collect(std::move(result));
    }
    return {};
  });
}

Result<RankSet::Results> RankSet::RunAhead(const std::vector<spec::StepPlan>& plans, Ahead* ahead) {
  return OnRanks([&](Rank& rank, const Collect& collect) -> Result<> {
    for (const spec::StepPlan& plan : plans) {
      while (!rank.MayBegin(plan)) {
        INFERD_ASSIGN(auto result, rank.Finish());
        collect(std::move(result));
      }
      const bool is_ahead = rank.num_under_way() > 0;
      INFERD_TRY(rank.Begin(plan));
      if (is_ahead && &rank == ranks_[0].get()) {
        ++ahead->steps;
        ahead->before_the_end += rank.IsDone() ? 0 : 1;
      }
    }
    while (rank.num_under_way() > 0) {
      INFERD_ASSIGN(auto result, rank.Finish());
      collect(std::move(result));
    }
    return {};
  });
}

std::vector<spec::StepPlan> PlanGeneration(const std::vector<std::vector<std::int32_t>>& prompts,
                                           const std::vector<spec::SamplingParams>& sampling,
                                           const Generation& generation) {
  struct State {
    std::int64_t done = 0;
    std::int32_t sampled = 0;
    std::int64_t last_step = -1;
  };
  std::vector<State> states(prompts.size());
  std::vector<spec::StepPlan> plans;
  const auto unfinished = [&](const State& state) { return state.sampled < generation.new_tokens; };
  for (std::int64_t step = 0; std::any_of(states.begin(), states.end(), unfinished); ++step) {
    spec::StepPlan& plan = plans.emplace_back();
    plan.generation = generation.generation;
    plan.step = step;
    for (std::size_t s = 0; s < prompts.size(); ++s) {
      State& state = states[s];
      if (!unfinished(state) ||
          static_cast<std::int64_t>(s) % generation.turns != step % generation.turns) {
        continue;
      }
      spec::RowWork work;
      work.row = static_cast<std::int32_t>(s) / generation.groups;
      work.group = static_cast<std::int32_t>(s) % generation.groups;
      work.start = state.done;
      const auto prompt_size = static_cast<std::int64_t>(prompts[s].size());
      if (state.done == 0) {
        spec::OpenRow& open = plan.open_rows.emplace_back();
        open.row = work.row;
        open.group = work.group;
        open.tokens = prompts[s];
        open.num_prompt_tokens = static_cast<std::int32_t>(prompt_size);
        open.sampling = sampling[s];
        work.reset_pages = true;
        for (std::int32_t i = 0; i < generation.pages_per_sequence; ++i) {
          const std::int32_t page =
              static_cast<std::int32_t>(s) * generation.pages_per_sequence + i;
          work.new_pages.push_back(page);
          plan.fresh_pages.emplace_back(work.group, page);
        }
      }
      const bool decodes = state.done >= prompt_size;
      work.count = decodes ? 1
                           : static_cast<std::int32_t>(std::min<std::int64_t>(
                                 generation.chunk, prompt_size - state.done));
      work.input_step = decodes ? state.last_step : -1;
      work.sample = work.start + work.count >= prompt_size;
      state.done += work.count;
      state.sampled += work.sample ? 1 : 0;
      state.last_step = step;
      plan.work.push_back(std::move(work));
    }
  }
  return plans;
}

std::vector<std::vector<std::int32_t>> TokensOf(const RankSet::Results& results,
                                                std::size_t sequences,
                                                int groups) {
  std::vector<std::vector<std::int32_t>> tokens(sequences);
  for (const auto& [key, result] : results) {
    for (const spec::SampledToken& sampled : result.sampled) {
      tokens[static_cast<std::size_t>(sampled.row * groups + sampled.group)].push_back(
          sampled.token);
    }
  }
  return tokens;
}

}  // namespace inferd::model
