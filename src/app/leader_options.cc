// SPDX-License-Identifier: Apache-2.0
#include "app/cluster_plan.h"
#include "app/commands.h"
#include "app/kv_events_config.h"
#include "app/progress.h"
#include "app/signals.h"
#include "app/speculative_config.h"
#include "base/error.h"
#include "cost/sim_device.h"
#include "model/weights.h"
#include "ops/device.h"
#include "rpc/secret.h"
#include "spec/memory_ledger.h"
#include "store/partial_model.h"
#include "store/shape.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace inferd::app {
namespace {

constexpr double kMaxTargetItlS = 3600;

std::int32_t Int32(std::int64_t value) {
  return static_cast<std::int32_t>(value);
}  // ranges: settings.cc

/// KV cache of a simulated device: what its memory leaves beside the weights, for all ranks of this
/// host.
Result<std::int64_t> SimKvBytes(const WorkerSettings& worker,
                                const cost::DeviceProfile& device,
                                const leader::LeaderOptions& options) {
  INFERD_ASSIGN(const auto shards, spec::PlanShards(options.model, options.parallel, options.cut));
  spec::LedgerOptions ledger_options;
  ledger_options.bytes_per_weight = spec::BytesPerWeight(options.model, options.weight_bytes);
  ledger_options.kv_bytes_per_value = spec::KvBytesPerValue(options.kv_dtype, options.model);
  ledger_options.max_batched_tokens = options.max_num_batched_tokens;
  ledger_options.max_num_seqs = 1;
  ledger_options.budget_bytes = static_cast<std::int64_t>(static_cast<double>(device.memory_bytes) *
                                                          worker.gpu_memory_utilization) -
                                device.reserved_bytes;
  INFERD_ASSIGN(const spec::MemoryLedger ledger,
                spec::MakeLedger(options.model, shards, ledger_options));
  std::int64_t least = ledger.ranks.front().kv_bytes;
  for (const spec::RankLedger& rank : ledger.ranks) {
    least = std::min(least, rank.kv_bytes);
  }
  const int ranks = options.parallel.dp * options.parallel.ranks_per_replica() / options.nnodes;
  return least * std::max(1, ranks);
}

/// Whether BF16 weights (FP8 ones are multiplied as BF16) meet bf16 activations: --dtype, on CPUs.
Result<bool> UsesBf16Dot(const std::string& dtype,
                         const store::Model& model,
                         spec::DeviceKind device) {
  if (device != spec::DeviceKind::kCpu) {
    if (dtype != "auto") {
      return InvalidArgument(
          "--dtype {} is for --device cpu: other devices compute in the type of the files", dtype);
    }
    return false;
  }
  const auto& tensors = model.tensors.tensors();
  const bool held = std::any_of(tensors.begin(), tensors.end(), [](const store::TensorInfo& t) {
    return t.dtype == DType::kBF16 || t.dtype == DType::kF8E4M3;
  });
  return held && (dtype == "bfloat16" || (dtype == "auto" && ops::HasFastBf16()));
}

/// With --device sim:PROFILE[/MODEL]: the sizes of that model, the words of the served one.
Result<> FillSim(const Config& config, leader::LeaderOptions* options) {
  INFERD_ASSIGN(const cost::SimDevice sim, cost::ParseSimDevice(config.worker.device));
  if (!sim.model.empty()) {
    INFERD_ASSIGN(const store::ModelShape shape, store::ReadShape(sim.model));
    spec::ModelSpec model = shape.spec;
    model.name = options->model.name;
    model.vocab_size = options->model.vocab_size;
    options->weight_bytes = static_cast<std::int64_t>(
        static_cast<double>(spec::CountParameters(model)) * shape.bytes_per_weight);
    model.eos_ids = options->model.eos_ids;
    model.bos_id = options->model.bos_id;
    options->model = std::move(model);
    options->cut = shape.cut;
    INFERD_ASSIGN(const spec::KvDtype asked, spec::ParseKvDtype(config.worker.kv_cache_dtype));
    options->kv_dtype = spec::KvDtypeFor(asked, shape.fp8_kv);
  }
  if (options->kv_cache_bytes == 0) {
    INFERD_ASSIGN(options->kv_cache_bytes, SimKvBytes(config.worker, sim.profile, *options));
  }
  return {};
}

Result<> FillShardBytes(const store::Model& model, leader::LeaderOptions* options) {
  INFERD_ASSIGN(const auto shards,
                spec::PlanShards(options->model, options->parallel, options->cut));
  const ops::DeviceClass device = options->device.kind == spec::DeviceKind::kCpu
                                      ? ops::DeviceClass::kCpu
                                      : ops::DeviceClass::kGpu;
  for (const spec::ShardPlan& shard : shards) {
    INFERD_ASSIGN(const std::int64_t bytes, model::WeightBytesOfShard(model, shard, device));
    options->shard_weight_bytes.push_back(bytes);
  }
  return {};
}

Result<spec::CommBackend> CommBackendOf(const std::string& name, const spec::DeviceChoice& device) {
  if (name == "host") {
    return spec::CommBackend::kHost;
  }
  if (name != "nccl") {
    return spec::CommBackend::kAuto;
  }
  if (device.kind != spec::DeviceKind::kCuda && device.kind != spec::DeviceKind::kCudaEmu) {
    return InvalidArgument(
        "--distributed-backend nccl joins GPUs: it needs --device cuda; CPUs use host");
  }
  return spec::CommBackend::kNccl;
}

/// A step or a recovery within its own deadline is not taken for a standstill; the second is for
/// an idle engine, which looks at the time twice in it.
std::int64_t StallDeadlineMs(const SchedulerConfig& scheduler) {
  if (scheduler.stall_deadline_ms == 0) {
    return 0;
  }
  return std::max({scheduler.stall_deadline_ms,
                   scheduler.step_deadline_ms + 1000,
                   scheduler.recovery_deadline_ms + 1000});
}

/// 0: no bound, as `inferd plan` has it where no target is given.
Result<std::int64_t> TargetItlNs(const std::string& text) {
  if (text.empty() || text == "0") {
    return std::int64_t{0};
  }
  INFERD_ASSIGN(const double seconds, ParseSeconds("--target-itl", text));
  if (seconds > kMaxTargetItlS) {
    return InvalidArgument("--target-itl is '{}'; {} s is the most", text, kMaxTargetItlS);
  }
  return static_cast<std::int64_t>(seconds * 1e9);
}

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
  // Other hosts find a model of an object store by its name; each reads what its ranks need.
  const bool shared = config.cluster.nnodes > 1 && !cost::IsSimDevice(config.worker.device);
  options.model_path = shared ? store::SharedName(config.model.model, model.path) : model.path;
  options.cut = model.cut;
  options.weight_bytes = store::LoadedBytes(model);
  options.parallel.tp = Int32(config.parallel.tp);
  options.parallel.pp = Int32(config.parallel.pp);
  options.parallel.ep = Int32(config.parallel.ep);
  options.parallel.dp = Int32(config.parallel.dp);
  options.parallel.expert_parallel_in_tp = config.parallel.enable_expert_parallel;
  for (const std::int64_t layers : config.parallel.pp_partition) {
    options.parallel.pp_partition.push_back(Int32(layers));
  }
  options.allow_cross_host_tp = config.parallel.allow_cross_host_tp;
  INFERD_ASSIGN(options.device, spec::ParseDevice(config.worker.device));
  INFERD_TRY(spec::CheckDevices(options.device, options.parallel));
  INFERD_ASSIGN(options.comm, CommBackendOf(config.parallel.distributed_backend, options.device));
  if (options.device.kind == spec::DeviceKind::kCuda) {
    if (const auto bytes = ops::CudaDeviceBytes(); bytes.ok()) {
      const auto least = std::min_element(bytes->begin(), bytes->end());
      options.device_bytes = static_cast<std::int64_t>(static_cast<double>(*least) *
                                                       config.worker.gpu_memory_utilization);
    }
  }
  options.threads = Int32(config.worker.threads);
  options.kv_cache_bytes = config.worker.kv_cache_bytes;
  INFERD_ASSIGN(options.kv_dtype, spec::ParseKvDtype(config.worker.kv_cache_dtype));
  options.kv_dtype = spec::KvDtypeFor(options.kv_dtype, model.fp8_kv);
  options.quantization = config.model.quantization;
  INFERD_ASSIGN(options.bf16_dot, UsesBf16Dot(config.model.dtype, model, options.device.kind));
  options.batch_invariant = config.worker.batch_invariant;
  options.enforce_eager = config.worker.enforce_eager;
  options.cuda_graph_sizes = config.worker.cuda_graph_sizes;
  options.max_model_len = config.model.max_model_len;
  options.max_num_seqs = Int32(config.scheduler.max_num_seqs);
  options.max_num_batched_tokens = Int32(config.scheduler.max_num_batched_tokens);
  INFERD_ASSIGN(options.target_itl_ns, TargetItlNs(config.scheduler.target_itl));
  options.max_waiting = config.scheduler.max_waiting;
  options.max_waiting_tokens = config.scheduler.max_waiting_tokens;
  options.max_predicted_wait_ms = config.scheduler.max_predicted_wait_ms;
  options.prefix_cache = config.scheduler.enable_prefix_caching;
  INFERD_ASSIGN(const Speculation speculation,
                ParseSpeculativeConfig(config.scheduler.speculative_config));
  options.num_speculative_tokens = speculation.num_tokens;
  options.prompt_lookup = speculation.prompt_lookup;
  options.enable_sleep_mode = config.http.enable_sleep_mode;
  INFERD_ASSIGN(options.kv_events,
                ParseKvEventsConfig(config.observability.kv_events_config, options.parallel.dp));
  options.step_deadline_ms = config.scheduler.step_deadline_ms;
  options.recovery_deadline_ms = config.scheduler.recovery_deadline_ms;
  options.stall_deadline_ms = StallDeadlineMs(config.scheduler);
  options.default_queue_deadline_ms = config.scheduler.queue_deadline_ms;
  options.runtime_dir = config.cluster.runtime_dir;
  options.nnodes = Int32(config.cluster.nnodes);
  options.nodes_deadline_ms = config.cluster.rendezvous_timeout_s * 1000;
  options.peer_deadline_ms = config.cluster.peer_timeout_s * 1000;
  if (config.cluster.nnodes > 1) {
    options.control_address = config.cluster.leader;
    options.data_address = config.cluster.data_address;
  }
  INFERD_ASSIGN(options.secret, ClusterSecret(config.cluster));
  if (cost::IsSimDevice(config.worker.device)) {
    INFERD_TRY(FillSim(config, &options));
  } else {
    INFERD_TRY(FillShardBytes(model, &options));
  }
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
