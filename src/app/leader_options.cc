// SPDX-License-Identifier: Apache-2.0
#include "app/commands.h"
#include "app/progress.h"
#include "app/signals.h"
#include "base/error.h"
#include "rpc/secret.h"

#include <cstdlib>
#include <utility>

namespace inferd::app {
namespace {

std::int32_t Int32(std::int64_t value) {
  return static_cast<std::int32_t>(value);
}  // ranges: settings.cc

}  // namespace

Result<std::string> ClusterSecret(const ClusterConfig& cluster) {
  if (!cluster.secret_file.empty()) {
    return rpc::ReadSecretFile(cluster.secret_file);
  }
  const char* const text = std::getenv("INFERD_CLUSTER_SECRET");
  if (text == nullptr) {
    return std::string();
  }
  INFERD_TRY(rpc::CheckSecret(text));
  return std::string(text);
}

Result<leader::LeaderOptions> MakeLeaderOptions(const Config& config, const store::Model& model) {
  leader::LeaderOptions options;
  options.model = model.spec;
  options.model_path = model.path;
  options.cut = model.cut;
  for (const store::TensorInfo& tensor : model.tensors.tensors()) {
    options.weight_bytes += static_cast<std::int64_t>(tensor.bytes);
  }
  options.parallel.tp = Int32(config.parallel.tp);
  options.parallel.pp = Int32(config.parallel.pp);
  options.parallel.ep = Int32(config.parallel.ep);
  options.parallel.dp = Int32(config.parallel.dp);
  options.parallel.expert_parallel_in_tp = config.parallel.enable_expert_parallel;
  for (const std::int64_t layers : config.parallel.pp_partition) {
    options.parallel.pp_partition.push_back(Int32(layers));
  }
  options.allow_cross_host_tp = config.parallel.allow_cross_host_tp;
  options.device = config.worker.device;
  options.threads = Int32(config.worker.threads);
  options.kv_cache_bytes = config.worker.kv_cache_bytes;
  const std::string& kv = config.worker.kv_cache_dtype;
  options.kv_dtype = kv.starts_with("bf") ? spec::KvDtype::kBf16
                     : kv == "auto"       ? spec::KvDtype::kAuto
                     : kv.ends_with("16") ? spec::KvDtype::kF16
                                          : spec::KvDtype::kF32;
  options.max_model_len = config.model.max_model_len;
  options.max_num_seqs = Int32(config.scheduler.max_num_seqs);
  options.max_num_batched_tokens = Int32(config.scheduler.max_num_batched_tokens);
  options.max_waiting = config.scheduler.max_waiting;
  options.prefix_cache = config.scheduler.enable_prefix_caching;
  options.step_deadline_ms = config.scheduler.step_deadline_ms;
  options.default_queue_deadline_ms = config.scheduler.queue_deadline_ms;
  options.runtime_dir = config.cluster.runtime_dir;
  options.nnodes = Int32(config.cluster.nnodes);
  options.nodes_deadline_ms = config.cluster.nodes_deadline_ms;
  if (config.cluster.nnodes > 1) {
    options.control_address = config.cluster.leader;
    options.data_address = config.cluster.data_address;
  }
  INFERD_ASSIGN(options.secret, ClusterSecret(config.cluster));
  return options;
}

Result<> WaitUntilReady(leader::Leader* leader) {
  ProgressBar bar("loading");
  return leader->WaitUntilReady(
      [&bar](const leader::LoadProgress& progress) {
        bar.Update(progress.bytes_done, progress.bytes_total);
      },
      [] { return StopRequested(); });
}

}  // namespace inferd::app
