// SPDX-License-Identifier: Apache-2.0
#include "leader/place_ranks.h"

#include "leader/host_resources.h"
#include "spec/cuda_graph_sizes.h"
#include "spec/device_choice.h"

#include <cstddef>
#include <map>
#include <numeric>
#include <utility>

namespace inferd::leader {

Result<std::vector<plan::RankPlacement>> PlaceAllRanks(
    const LeaderOptions& options, const std::vector<std::int32_t>& agent_cpus) {
  std::vector<plan::NodeInfo> nodes(static_cast<std::size_t>(options.nnodes));
  nodes[0].cpus = AllowedCpus();
  if (options.threads > 0 && static_cast<std::size_t>(options.threads) < nodes[0].cpus.size()) {
    nodes[0].cpus.resize(static_cast<std::size_t>(options.threads));
  }
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    nodes[i].cpus.resize(static_cast<std::size_t>(agent_cpus[i]));
    std::iota(nodes[i].cpus.begin(), nodes[i].cpus.end(), 0);
  }
  return plan::PlaceRanks(options.parallel, nodes, options.allow_cross_host_tp);
}

Result<std::vector<std::string>> DevicesOf(const LeaderOptions& options,
                                           const std::vector<plan::RankPlacement>& places) {
  std::map<std::int32_t, int> used;
  std::vector<std::string> devices;
  for (const plan::RankPlacement& place : places) {
    INFERD_ASSIGN(std::string device, spec::DeviceOfRank(options.device, used[place.node]++));
    devices.push_back(std::move(device));
  }
  return devices;
}

spec::LoadRequest MakeLoad(const LeaderOptions& options,
                           const Sizing& sizing,
                           const spec::ShardPlan& shard,
                           const plan::RankPlacement& place,
                           const std::string& device) {
  spec::LoadRequest load;
  load.model_path = options.model_path;
  load.shard = shard;
  load.max_num_seqs = options.max_num_seqs;
  load.max_batched_tokens = options.max_num_batched_tokens;
  load.max_model_len = sizing.max_model_len;
  load.kv_pages = sizing.kv_pages;
  load.kv_dtype = options.kv_dtype;
  load.quantization = options.quantization;
  load.bf16_dot = options.bf16_dot;
  load.device = device;
  load.comm = options.comm;
  load.batch_invariant = options.batch_invariant;
  if (!options.enforce_eager) {
    load.cuda_graph_sizes = spec::CudaGraphSizes(
        options.cuda_graph_sizes, options.max_num_seqs, options.max_num_batched_tokens);
  }
  load.threads = place.threads;
  load.cpus = place.cpus;
  return load;
}

}  // namespace inferd::leader
