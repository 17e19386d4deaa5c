// SPDX-License-Identifier: Apache-2.0
#include "app/rendezvous.h"

#include "base/error.h"

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace inferd::app {
namespace {

constexpr const char* kControlPort = ":7000";
constexpr std::int64_t kMaxNodes = 1024;

std::string Text(const Environment& environment, const char* name) {
  const char* const value = environment(name);
  return value == nullptr ? std::string() : std::string(value);
}

/// nullopt: not set.
Result<std::optional<std::int64_t>> Number(const Environment& environment, const char* name) {
  const std::string text = Text(environment, name);
  if (text.empty()) {
    return std::optional<std::int64_t>();
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > kMaxNodes) {
    return InvalidArgument("{} is '{}'; it must be from 0 to {}", name, text, kMaxNodes);
  }
  return std::optional(value);
}

std::string WithPort(const std::string& host) { return host.empty() ? host : host + kControlPort; }

/// Ranks over processes to hosts over processes: one process per host.
struct Launch {
  const char* rank;
  const char* size;
  const char* per_host;
  const char* by;
};

Result<std::string> FromRanks(const Environment& environment,
                              const Launch& launch,
                              ClusterConfig* cluster) {
  INFERD_ASSIGN(const auto rank, Number(environment, launch.rank));
  INFERD_ASSIGN(const auto size, Number(environment, launch.size));
  if (!rank || !size || *size < 2) {
    return std::string();
  }
  if (launch.per_host != nullptr) {
    INFERD_ASSIGN(const auto per_host, Number(environment, launch.per_host));
    if (per_host.value_or(1) > 1) {
      return InvalidArgument("{} is {}: inferd starts its ranks itself; start one process per host",
                             launch.per_host,
                             *per_host);
    }
  }
  if (*rank >= *size) {
    return InvalidArgument("{} is {}, but {} is {}", launch.rank, *rank, launch.size, *size);
  }
  cluster->nnodes = *size;
  cluster->node_rank = *rank;
  if (cluster->leader.empty()) {
    cluster->leader = WithPort(Text(environment, "MASTER_ADDR"));
  }
  return std::string(launch.by);
}

Result<std::string> FromHeadService(const Environment& environment, ClusterConfig* cluster) {
  const std::string head = Text(environment, "HEAD_SVC");
  if (head.empty()) {
    return std::string();
  }
  INFERD_ASSIGN(const auto nodes, Number(environment, "RAY_NODE_COUNT"));
  const std::string space = Text(environment, "POD_NAMESPACE");
  cluster->nnodes = nodes.value_or(2);
  cluster->node_rank = -1;
  cluster->leader = WithPort(space.empty() ? head : head + "." + space + ".svc");
  return std::string("HEAD_SVC");
}

Result<std::string> FromStatefulSet(const Environment& environment, ClusterConfig* cluster) {
  const std::string pod = Text(environment, "POD_NAME");
  const std::size_t dash = pod.rfind('-');
  INFERD_ASSIGN(auto index, Number(environment, "POD_INDEX"));
  if (!index && dash != std::string::npos) {
    const auto named = [&](const char*) { return pod.c_str() + dash + 1; };
    INFERD_ASSIGN(index, Number(named, "the number that POD_NAME ends with"));
  }
  if (!index || cluster->nnodes < 2) {
    return std::string();
  }
  if (*index >= cluster->nnodes) {
    return InvalidArgument("POD_INDEX is {}, but --nnodes is {}", *index, cluster->nnodes);
  }
  cluster->node_rank = *index;
  const std::string service = Text(environment, "SERVICE_NAME");
  if (cluster->leader.empty() && dash != std::string::npos && !service.empty()) {
    const std::string space = Text(environment, "POD_NAMESPACE");
    cluster->leader = WithPort(pod.substr(0, dash) + "-0." + service +
                               (space.empty() ? "" : "." + space + ".svc"));
  }
  return std::string("the ordinal of the StatefulSet");
}

}  // namespace

Result<std::string> ApplyRendezvous(const Environment& environment, ClusterConfig* cluster) {
  std::string by;
  const bool leader_given = !cluster->leader.empty();
  if (!Text(environment, "LWS_GROUP_SIZE").empty()) {
    // Size and index are settings' defaults already.
    by = cluster->nnodes > 1 ? "LWS_*" : "";
    if (cluster->leader.empty()) {
      cluster->leader = WithPort(Text(environment, "LWS_LEADER_ADDRESS"));
    }
  } else if (cluster->node_rank == 0 && cluster->leader.empty()) {
    if (cluster->nnodes > 1) {
      INFERD_ASSIGN(by, FromStatefulSet(environment, cluster));
    } else {
      constexpr Launch kLaunches[] = {
          {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "torchrun"},
          {"OMPI_COMM_WORLD_RANK",
           "OMPI_COMM_WORLD_SIZE",
           "OMPI_COMM_WORLD_LOCAL_SIZE",
           "Open MPI"},
          {"SLURM_NODEID", "SLURM_NNODES", "SLURM_NTASKS_PER_NODE", "Slurm"}};
      INFERD_ASSIGN(by, FromHeadService(environment, cluster));
      for (const Launch& launch : kLaunches) {
        if (by.empty()) {
          INFERD_ASSIGN(by, FromRanks(environment, launch, cluster));
        }
      }
    }
  }
  // The leader listens; its own name may not resolve to an address of this host.
  if (!by.empty() && !leader_given && cluster->node_rank == 0) {
    cluster->leader = std::string("0.0.0.0") + kControlPort;
  }
  return by;
}

}  // namespace inferd::app
