// SPDX-License-Identifier: Apache-2.0
#include "app/cluster_plan.h"

#include "base/error.h"
#include "base/file.h"
#include "plan/topology.h"
#include "spec/worker_config.h"
#include "store/shape.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace inferd::app {
namespace {

constexpr std::uint64_t kMaxTopologyBytes = 4U << 20U;
constexpr int kDefaultPerNode = 8;
constexpr int kMaxDevices = 65'536;

/// "32xA100-80G": a number and what follows the x.
struct Counted {
  int count = 0;
  std::string what;
};

Result<Counted> ParseCounted(const std::string& flag, const std::string& text) {
  Counted counted;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), counted.count);
  const auto used = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || used + 1 >= text.size() || (text[used] != 'x' && text[used] != 'X')) {
    return InvalidArgument(
        "{} is '{}'; it must be like {}", flag, text, flag == "--gpus" ? "32xA100-80G" : "4x8");
  }
  if (counted.count < 1 || counted.count > kMaxDevices) {
    return InvalidArgument("{} is '{}'; 1 to {} devices are possible", flag, text, kMaxDevices);
  }
  counted.what = text.substr(used + 1);
  return counted;
}

Result<> FillNodes(const PlanFlags& flags, int devices, plan::ClusterSpec* cluster) {
  if (flags.nodes.empty()) {
    cluster->per_node = std::min(devices, cluster->device.gpu ? kDefaultPerNode : devices);
    cluster->nodes = devices / cluster->per_node;
    if (cluster->nodes * cluster->per_node != devices) {
      return InvalidArgument(
          "--gpus {} devices are not whole hosts of {}; say with --nodes HxN how they are dealt",
          devices,
          cluster->per_node);
    }
    return {};
  }
  INFERD_ASSIGN(const Counted nodes, ParseCounted("--nodes", flags.nodes));
  INFERD_ASSIGN(const double per_node, ParseNumber("--nodes", nodes.what, 1, kMaxDevices));
  cluster->nodes = nodes.count;
  cluster->per_node = static_cast<int>(per_node);
  if (cluster->nodes * cluster->per_node != devices) {
    return InvalidArgument("--nodes {} are {} devices, but --gpus says {}",
                           flags.nodes,
                           cluster->nodes * cluster->per_node,
                           devices);
  }
  return {};
}

Result<> FillTopology(const PlanFlags& flags, plan::ClusterSpec* cluster) {
  if (flags.topology.empty()) {
    return {};
  }
  INFERD_ASSIGN(const std::string text, base::ReadFile(flags.topology, kMaxTopologyBytes));
  INFERD_ASSIGN(const plan::Topology topology, plan::ParseNvidiaTopology(flags.topology, text));
  // Devices are numbered domain by domain in the plan, as they are on every machine seen.
  for (const auto& domain : topology.domains) {
    cluster->domains.push_back(static_cast<int>(domain.size()));
  }
  return {};
}

/// 0: any.
int SizeOf(const std::string& given, std::int64_t configured) {
  if (given == "auto" || (given.empty() && configured == 1)) {
    return 0;
  }
  return static_cast<int>(configured);
}

Result<double> OrDefault(
    const std::string& flag, const std::string& text, double fallback, double min, double max) {
  if (text.empty()) {
    return fallback;
  }
  return ParseNumber(flag, text, min, max);
}

Result<> FillWorkload(const CommandLine& line, plan::LayoutRequest* request) {
  const PlanFlags& flags = line.plan;
  INFERD_ASSIGN(request->rate, OrDefault("--rate", flags.rate, 0, 1e-6, 1e9));
  INFERD_ASSIGN(request->lengths.input, OrDefault("--input", flags.input, 1000, 1, 1e7));
  INFERD_ASSIGN(request->lengths.output, OrDefault("--output", flags.output, 300, 1, 1e7));
  if (!flags.target_ttft.empty()) {
    INFERD_ASSIGN(request->targets.ttft_s, ParseSeconds("--target-ttft", flags.target_ttft));
  }
  if (!line.config.scheduler.target_itl.empty()) {
    INFERD_ASSIGN(request->targets.itl_s,
                  ParseSeconds("--target-itl", line.config.scheduler.target_itl));
  }
  INFERD_ASSIGN(const double redundancy,
                OrDefault("--redundancy", flags.redundancy, 0, 0, kMaxDevices));
  request->redundancy = static_cast<int>(redundancy);
  return {};
}

Result<> FillModel(const CommandLine& line, plan::LayoutRequest* request) {
  INFERD_ASSIGN(const store::ModelShape shape, store::ReadShape(line.config.model.model));
  request->model = shape.spec;
  request->cut = shape.cut;
  request->bytes_per_weight = shape.bytes_per_weight;
  // Formats of blocks keep a 16-bit scale for 32 weights: half a bit more.
  if (line.config.model.quantization == "int8") {
    request->bytes_per_weight = 1.0625;
  } else if (line.config.model.quantization == "fp8") {
    request->bytes_per_weight = 1;
  } else if (line.config.model.quantization == "int4") {
    request->bytes_per_weight = 0.5625;
  }
  const std::string& bits = line.plan.weight_bits;
  if (!bits.empty()) {
    if (bits != "16" && bits != "8" && bits != "4") {
      return InvalidArgument("--weight-bits is '{}'; 16, 8 and 4 are possible", bits);
    }
    request->bytes_per_weight = bits == "16" ? 2 : bits == "8" ? 1 : 0.5625;
  }
  INFERD_ASSIGN(const spec::KvDtype kv, spec::ParseKvDtype(line.config.worker.kv_cache_dtype));
  request->kv_bytes_per_value =
      spec::KvBytesPerValue(spec::KvDtypeFor(kv, shape.fp8_kv), shape.spec);
  request->max_model_len = line.config.model.max_model_len;
  return {};
}

}  // namespace

Result<double> ParseNumber(const std::string& flag,
                           const std::string& text,
                           double min,
                           double max) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= min && value <= max)) {
    return InvalidArgument("{} is '{}'; it must be a number from {} to {}", flag, text, min, max);
  }
  return value;
}

Result<double> ParseSeconds(const std::string& flag, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const double scale = unit == "ms"                  ? 1e-3
                       : unit == "us"                ? 1e-6
                       : unit == "s" || unit.empty() ? 1
                                                     : 0;
  if (end == text.c_str() || scale == 0 || !(value > 0) || !std::isfinite(value)) {
    return InvalidArgument("{} is '{}'; it must be a time like 2s or 50ms", flag, text);
  }
  return value * scale;
}

void TakeAuto(std::vector<std::string>* words, PlanFlags* flags) {
  const std::pair<std::array<const char*, 2>, std::string*> sizes[] = {
      {{"--tp", "--tensor-parallel-size"}, &flags->tp},
      {{"--pp", "--pipeline-parallel-size"}, &flags->pp},
      {{"--ep", "--expert-parallel-size"}, &flags->ep}};
  for (std::size_t i = 0; i < words->size();) {
    const std::string word = (*words)[i];
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    std::size_t taken = 0;
    for (const auto& [names, text] : sizes) {
      if (std::ranges::find(names, name) == names.end()) {
        continue;
      }
      const bool apart = equals == std::string::npos;
      *text = !apart                  ? word.substr(equals + 1)
              : i + 1 < words->size() ? (*words)[i + 1]
                                      : std::string();
      taken = *text == "auto" ? (apart ? 2 : 1) : 0;
    }
    if (taken == 0) {
      ++i;
      continue;
    }
    const auto at = words->begin() + static_cast<std::ptrdiff_t>(i);
    words->erase(at, at + static_cast<std::ptrdiff_t>(taken));
  }
}

Result<plan::LayoutRequest> MakeLayoutRequest(const CommandLine& line) {
  plan::LayoutRequest request;
  INFERD_TRY(FillModel(line, &request));
  INFERD_ASSIGN(const cost::DeviceTable devices, cost::DeviceTable::Load(line.plan.devices_file));
  INFERD_ASSIGN(const Counted gpus, ParseCounted("--gpus", line.plan.gpus));
  INFERD_ASSIGN(request.cluster.device, devices.Find(gpus.what));
  INFERD_TRY(FillNodes(line.plan, gpus.count, &request.cluster));
  INFERD_TRY(FillTopology(line.plan, &request.cluster));
  const ParallelConfig& parallel = line.config.parallel;
  request.tp = SizeOf(line.plan.tp, parallel.tp);
  request.pp = SizeOf(line.plan.pp, parallel.pp);
  request.ep = SizeOf(line.plan.ep, parallel.ep);
  request.expert_parallel_in_tp = parallel.enable_expert_parallel;
  request.allow_cross_host_tp = parallel.allow_cross_host_tp;
  request.memory_utilization = line.config.worker.gpu_memory_utilization;
  request.max_num_seqs = line.config.scheduler.max_num_seqs;
  request.max_batched_tokens = line.config.scheduler.max_num_batched_tokens;
  INFERD_TRY(FillWorkload(line, &request));
  return request;
}

}  // namespace inferd::app
