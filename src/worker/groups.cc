// SPDX-License-Identifier: Apache-2.0
#include "worker/groups.h"

#include "base/error.h"
#include "comm/nccl.h"

#include <algorithm>
#include <utility>

namespace inferd::worker {
namespace {

constexpr std::chrono::milliseconds kJoinDeadline{10'000};

/// What all groups of a rank have in common.
struct Joiner {
  const spec::JoinRequest& join;
  int rank;
  comm::TcpListener* listener;
  const std::string& secret;
  spec::CommBackend backend;
  tensor::DeviceQueue* queue;
};

Result<std::unique_ptr<comm::Communicator>> JoinHost(const spec::GroupConfig& group,
                                                     const comm::GroupOptions& options,
                                                     const Joiner& joiner) {
  if (group.shm) {
    return comm::JoinShm(options);
  }
  if (joiner.listener == nullptr) {
    return FailedPrecondition("group {} spans hosts, but this worker has no data address",
                              group.id);
  }
  return comm::JoinTcp(options, *joiner.listener, group.endpoints, joiner.secret);
}

/// `carries_rows`: of activations, which lie on the device.
Result<std::unique_ptr<comm::Communicator>> JoinOne(const spec::GroupConfig& group,
                                                    const Joiner& joiner,
                                                    bool carries_rows) {
  const spec::JoinRequest& join = joiner.join;
  const int rank = joiner.rank;
  const auto place = std::find(group.ranks.begin(), group.ranks.end(), rank);
  if (group.ranks.size() < 2 || place == group.ranks.end()) {
    return std::unique_ptr<comm::Communicator>();
  }
  comm::GroupOptions options;
  options.id = group.id;
  options.generation = join.generation;
  options.rank = static_cast<int>(place - group.ranks.begin());
  options.size = static_cast<int>(group.ranks.size());
  options.join_deadline = kJoinDeadline;
  options.call_deadline = std::chrono::milliseconds(join.step_deadline_ms);
  options.peer_memory = &group == &join.tp;  // the one with exchanges within every layer
  INFERD_ASSIGN(std::unique_ptr<comm::Communicator> host, JoinHost(group, options, joiner));
  if (!carries_rows || joiner.queue == nullptr || joiner.backend == spec::CommBackend::kHost) {
    return host;
  }
  return comm::JoinNccl(
      options, std::move(host), *joiner.queue, joiner.backend == spec::CommBackend::kNccl);
}

}  // namespace

Result<model::RankComms> JoinGroups(const spec::JoinRequest& join,
                                    int rank,
                                    comm::TcpListener* listener,
                                    const std::string& secret,
                                    spec::CommBackend backend,
                                    tensor::DeviceQueue* queue) {
  const Joiner joiner{join, rank, listener, secret, backend, queue};
  model::RankComms comms;
  const std::pair<const spec::GroupConfig*, std::unique_ptr<comm::Communicator>*> groups[] = {
      {&join.tp, &comms.tp}, {&join.ep, &comms.ep}, {&join.pp, &comms.pp}, {&join.ids, &comms.ids}};
  for (const auto& [config, communicator] : groups) {
    Result<std::unique_ptr<comm::Communicator>> joined =
        JoinOne(*config, joiner, config != &join.ids);
    if (!joined.ok()) {
      return joined.error().WithContext(fmt::format("rank {} joining group {}", rank, config->id));
    }
    *communicator = *std::move(joined);
  }
  return comms;
}

}  // namespace inferd::worker
