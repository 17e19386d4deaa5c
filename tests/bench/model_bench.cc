// SPDX-License-Identifier: Apache-2.0
// Speed of one rank on a real model, without server and front end: the counterpart of llama-bench.
//
//   model_bench MODEL [threads] [prompt tokens] [decode tokens] [rows]      prints one JSON object
//
// Prefill: one prompt in one step, last logits only. Decode: `rows` sequences, greedy, from an
// empty context.
#include "model/rank.h"
#include "spec/parallel.h"
#include "spec/step.h"
#include "store/model.h"

#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

namespace inferd {
namespace {

constexpr std::int32_t kPageTokens = 32;

struct Setting {
  std::string model;
  int threads = 2;
  std::int32_t prompt_tokens = 512;
  std::int32_t decode_tokens = 128;
  std::int32_t rows = 1;
};

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Result<std::unique_ptr<model::Rank>> Load(const Setting& setting) {
  INFERD_ASSIGN(const store::Model opened, store::OpenModel(setting.model));
  INFERD_ASSIGN(const std::vector<spec::ShardPlan> shards,
                spec::PlanShards(opened.spec, {}, opened.cut));
  spec::LoadRequest load;
  load.model_path = setting.model;
  load.shard = shards[0];
  load.max_num_seqs = setting.rows;
  load.max_batched_tokens = setting.prompt_tokens;
  load.max_model_len = setting.prompt_tokens + setting.decode_tokens + kPageTokens;
  load.kv_pages = setting.rows * (load.max_model_len / kPageTokens + 1);
  load.threads = setting.threads;
  for (int cpu = 0; cpu < setting.threads; ++cpu) {
    load.cpus.push_back(cpu);
  }
  return model::Rank::Load(load, [](std::int64_t, std::int64_t) {});
}

/// Runs steps of one generation; rows have fixed, disjoint pages.
class Runner {
 public:
  Runner(model::Rank* rank, const Setting& setting) : rank_(rank), setting_(setting) {}

  Result<double> Prefill() {
    spec::StepPlan plan = NextPlan();
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(setting_.prompt_tokens));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::int32_t>((i * 7919 + 13) % 20000);
    }
    AddRow(&plan, 0, std::move(tokens));
    return Time(plan);
  }

  Result<double> Decode() {
    spec::StepPlan open = NextPlan();
    for (std::int32_t row = 0; row < setting_.rows; ++row) {
      AddRow(&open, row, {row + 11});
    }
    INFERD_TRY(Time(open));
    const auto begin = std::chrono::steady_clock::now();
    for (std::int32_t i = 1; i <= setting_.decode_tokens; ++i) {
      spec::StepPlan plan = NextPlan();
      for (std::int32_t row = 0; row < setting_.rows; ++row) {
        spec::RowWork& work = plan.work.emplace_back();
        work.row = row;
        work.start = i;
        work.count = 1;
        work.sample = true;
        work.input_step = plan.step - 1;
      }
      INFERD_TRY(Time(plan));
    }
    return SecondsSince(begin);
  }

 private:
  spec::StepPlan NextPlan() {
    spec::StepPlan plan;
    plan.generation = 1;
    plan.step = step_++;
    return plan;
  }

  void AddRow(spec::StepPlan* plan, std::int32_t row, std::vector<std::int32_t> tokens) {
    spec::RowWork& work = plan->work.emplace_back();
    work.row = row;
    work.count = static_cast<std::int32_t>(tokens.size());
    work.sample = true;
    work.reset_pages = true;
    const std::int32_t pages = (setting_.prompt_tokens + setting_.decode_tokens) / kPageTokens + 1;
    for (std::int32_t page = 0; page < pages; ++page) {
      work.new_pages.push_back(row * pages + page);
      plan->fresh_pages.emplace_back(0, row * pages + page);
    }
    spec::OpenRow& open = plan->open_rows.emplace_back();
    open.row = row;
    open.num_prompt_tokens = work.count;
    open.tokens = std::move(tokens);
    open.sampling.temperature = 0;
  }

  Result<double> Time(const spec::StepPlan& plan) {
    const auto begin = std::chrono::steady_clock::now();
    INFERD_TRY(rank_->Begin(plan));
    INFERD_TRY(rank_->Finish());
    return SecondsSince(begin);
  }

  model::Rank* const rank_;
  const Setting setting_;
  std::int64_t step_ = 0;
};

Result<> Main(const Setting& setting) {
  INFERD_ASSIGN(const std::unique_ptr<model::Rank> rank, Load(setting));
  INFERD_TRY(rank->Join(1, {}));
  Runner runner(rank.get(), setting);
  INFERD_TRY(runner.Prefill());  // Warm-up.
  INFERD_ASSIGN(const double prefill_s, runner.Prefill());
  INFERD_ASSIGN(const double decode_s, runner.Decode());
  fmt::print(
      "{{\"threads\": {}, \"rows\": {}, \"prefill_tok_s\": {:.1f}, \"decode_tok_s\": {:.1f}, "
      "\"weight_bytes\": {}}}\n",
      setting.threads,
      setting.rows,
      setting.prompt_tokens / prefill_s,
      static_cast<double>(setting.decode_tokens) * setting.rows / decode_s,
      rank->memory().weight_bytes);
  return {};
}

}  // namespace
}  // namespace inferd

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr,
               "usage: model_bench MODEL [threads] [prompt tokens] [decode tokens] [rows]\n");
    return 2;
  }
  inferd::Setting setting;
  setting.model = argv[1];
  setting.threads = argc > 2 ? std::atoi(argv[2]) : setting.threads;
  setting.prompt_tokens = argc > 3 ? std::atoi(argv[3]) : setting.prompt_tokens;
  setting.decode_tokens = argc > 4 ? std::atoi(argv[4]) : setting.decode_tokens;
  setting.rows = argc > 5 ? std::atoi(argv[5]) : setting.rows;
  const inferd::Result<> result = inferd::Main(setting);
  if (!result.ok()) {
    fmt::print(stderr, "model_bench: {}\n", result.error().message());
    return 1;
  }
  return 0;
}
