// SPDX-License-Identifier: Apache-2.0
// A replica of Ranks on threads of this process, and plans that drive it as an engine would.
#pragma once

#include "model/rank.h"
#include "unit/model/harness.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace inferd::model {

/// How the ranks of a tp group exchange: through the host, with NCCL, or with NCCL and peer memory.
enum class Exchange : std::uint8_t { kHost, kNccl, kPeers };

struct RankSetOptions {
  spec::ParallelSpec parallel;
  std::int32_t max_num_seqs = 8;
  std::int32_t max_batched_tokens = 128;
  std::int64_t max_model_len = 64;
  std::int64_t kv_pages = 32;
  int threads = 1;
  std::string device = "cpu";
  std::vector<std::int32_t> cuda_graph_sizes;
  bool batch_invariant = false;
  spec::KvDtype kv_dtype = spec::KvDtype::kAuto;
  Exchange exchange = Exchange::kHost;
};

class RankSet {
 public:
  static Result<std::unique_ptr<RankSet>> Make(const std::string& path,
                                               const RankSetOptions& options);

  Result<> Join(std::uint64_t generation);
  /// Runs all plans on all ranks, each at its own pace; results of the samplers, by (step, group).
  using Results = std::map<std::pair<std::int64_t, std::int32_t>, spec::StepResult>;
  Result<Results> Run(const std::vector<spec::StepPlan>& plans);
  /// The same, but a step begins as soon as it may. Counts rank 0's steps that began while another
  /// was under way, and those of them after whose beginning the device was not done with that.
  struct Ahead {
    std::int64_t steps = 0;
    std::int64_t before_the_end = 0;
  };
  Result<Results> RunAhead(const std::vector<spec::StepPlan>& plans, Ahead* ahead);
  Rank& rank(std::size_t index) { return *ranks_[index]; }
  const std::vector<spec::ShardPlan>& plans() const { return plans_; }

 private:
  /// body(rank, collect), which tells all results, on a thread for each rank.
  using Collect = std::function<void(std::optional<spec::StepResult>)>;
  Result<Results> OnRanks(const std::function<Result<>(Rank&, const Collect&)>& body);

  RankSetOptions options_;
  std::vector<spec::ShardPlan> plans_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<RankComms> no_comms_;
};

/// Plans for sequences that are prefilled in chunks and then decode, one token a step, reading
/// tokens still in flight. Sequence s is row s / ep of group s % ep and has pages of its own; it
/// takes part in steps with step % turns == s % turns, as micro-batches of a pipeline do.
struct Generation {
  std::uint64_t generation = 1;
  int groups = 1;
  int turns = 1;
  std::int32_t chunk = 16;
  std::int32_t new_tokens = 8;
  std::int32_t pages_per_sequence = 2;
};
std::vector<spec::StepPlan> PlanGeneration(const std::vector<std::vector<std::int32_t>>& prompts,
                                           const std::vector<spec::SamplingParams>& sampling,
                                           const Generation& generation);

/// Tokens per sequence in the order they were sampled.
std::vector<std::vector<std::int32_t>> TokensOf(const RankSet::Results& results,
                                                std::size_t sequences,
                                                int groups);

}  // namespace inferd::model
