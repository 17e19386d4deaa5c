// SPDX-License-Identifier: Apache-2.0
#include "app/bench_profile.h"

#include "base/error.h"
#include "base/file.h"
#include "cost/sim_device.h"
#include "leader/host_resources.h"
#include "ops/nvml.h"
#include "spec/memory_ledger.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace inferd::app {
namespace {

/// Whether one of the words of `text` ("NVIDIA A100-SXM4-40GB" has three) is `word`.
bool HasWord(std::string_view text, std::string_view word) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(" -"), text.size());
    if (text.substr(0, end) == word) {
      return true;
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return false;
}

Result<cost::DeviceProfile> BaseProfile(const Config& config, spec::DeviceKind kind) {
  if (kind == spec::DeviceKind::kSim) {
    INFERD_ASSIGN(cost::SimDevice sim, cost::ParseSimDevice(config.worker.device));
    return std::move(sim.profile);
  }
  INFERD_ASSIGN(const cost::DeviceTable table, cost::DeviceTable::Load(""));
  if (kind == spec::DeviceKind::kCuda) {
    INFERD_ASSIGN(const ops::GpuHost host, ops::ReadGpus());
    if (host.gpus.empty()) {
      return NotFound("the driver tells of no GPU");
    }
    return ProfileLike(host.gpus.front().name, host.gpus.front().total_bytes, table);
  }
  INFERD_ASSIGN(cost::DeviceProfile cpu, table.Find("cpu"));
  cpu.memory_bytes = leader::AvailableMemoryBytes();
  return cpu;
}

/// "my-host" of "path/my-host.yaml", as `--gpus Nxmy-host` can say it.
Result<std::string> NameOf(const std::string& file) {
  std::string name = file.substr(file.rfind('/') + 1);
  name = name.substr(0, name.rfind('.'));
  const bool is_plain =
      !name.empty() &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") ==
          std::string::npos;
  if (!is_plain) {
    return InvalidArgument(
        "--write-profile {}: the file's name is the device's; use letters, digits, - and _", file);
  }
  return name;
}

}  // namespace

Result<cost::DeviceProfile> ProfileLike(std::string_view gpu_name,
                                        std::int64_t memory_bytes,
                                        const cost::DeviceTable& table) {
  const cost::DeviceProfile* best = nullptr;
  const auto distance = [memory_bytes](const cost::DeviceProfile& profile) {
    return std::abs(profile.memory_bytes - memory_bytes);
  };
  const auto is_like = [gpu_name](const std::string& name) {
    return HasWord(gpu_name, std::string_view(name).substr(0, name.find('-')));
  };
  for (const cost::DeviceProfile& profile : table.profiles()) {
    const bool fits =
        profile.gpu && (is_like(profile.name) ||
                        std::any_of(profile.aliases.begin(), profile.aliases.end(), is_like));
    if (fits && (best == nullptr || distance(profile) < distance(*best))) {
      best = &profile;
    }
  }
  if (best == nullptr) {
    return NotFound("no built-in profile is like a {}; configs/devices has them", gpu_name);
  }
  cost::DeviceProfile profile = *best;
  profile.memory_bytes = memory_bytes;
  return profile;
}

Result<ProfilePlan> PlanProfile(const std::string& file,
                                const Config& config,
                                const leader::LeaderOptions& options) {
  if (options.parallel.dp * options.parallel.ranks_per_replica() != 1 || options.nnodes != 1) {
    return InvalidArgument(
        "--write-profile describes one device: leave --tp, --pp, --ep, --dp and --nnodes at 1");
  }
  const std::size_t slash = file.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : file.substr(0, slash + 1);
  if (::access(folder.c_str(), W_OK) != 0) {
    return InvalidArgument("--write-profile {}: {} cannot be written to", file, folder);
  }
  ProfilePlan plan;
  plan.file = file;
  INFERD_ASSIGN(std::string name, NameOf(file));
  INFERD_ASSIGN(plan.base, BaseProfile(config, options.device.kind));
  INFERD_ASSIGN(const auto shards, spec::PlanShards(options.model, options.parallel, options.cut));
  plan.measured.bytes_per_weight = spec::BytesPerWeight(options.model, options.weight_bytes);
  plan.measured.stage = cost::MakeStages(options.model,
                                         shards,
                                         plan.measured.bytes_per_weight,
                                         spec::KvBytesPerValue(options.kv_dtype, options.model),
                                         plan.base)
                            .front();
  plan.measured.max_batched_tokens = options.max_num_batched_tokens;
  const std::string like = plan.base.name;
  plan.base.name = std::move(name);
  plan.base.aliases.clear();
  plan.base.mig.clear();
  plan.base.sources = {fmt::format("rates and fixed costs: inferd bench {} --device {}, fitted",
                                   options.model.name,
                                   config.worker.device),
                       fmt::format("all else: the profile {}", like)};
  return plan;
}

Result<std::string> WriteProfile(const ProfilePlan& plan,
                                 std::vector<cost::Observation> observations) {
  cost::Measured measured = plan.measured;
  measured.observations = std::move(observations);
  INFERD_ASSIGN(const cost::FittedProfile fitted, cost::FitProfile(plan.base, measured));
  const std::string text = cost::ProfileYaml(fitted.device);
  INFERD_TRY(cost::DeviceTable::Parse(plan.file, text));
  INFERD_TRY(base::WriteFileAtomic(plan.file, text));
  return fmt::format(
      "{}: a profile whose predictions are off by {:.1f} % on average and {:.1f} % at most; "
      "inferd plan --devices {} --gpus 1x{}",
      plan.file,
      fitted.mean_error * 100,
      fitted.worst_error * 100,
      plan.file,
      fitted.device.name);
}

}  // namespace inferd::app
