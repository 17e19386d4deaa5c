// SPDX-License-Identifier: Apache-2.0
#include "worker/groups.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace inferd::worker {
namespace {

constexpr std::chrono::milliseconds kJoinDeadline{10'000};

Result<std::unique_ptr<comm::Communicator>> JoinOne(const spec::GroupConfig& group,
                                                    const spec::JoinRequest& join,
                                                    int rank,
                                                    comm::TcpListener* listener,
                                                    const std::string& secret) {
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
  if (group.shm) {
    return comm::JoinShm(options);
  }
  if (listener == nullptr) {
    return FailedPrecondition("group {} spans hosts, but this worker has no data address",
                              group.id);
  }
  return comm::JoinTcp(options, *listener, group.endpoints, secret);
}

}  // namespace

Result<model::RankComms> JoinGroups(const spec::JoinRequest& join,
                                    int rank,
                                    comm::TcpListener* listener,
                                    const std::string& secret) {
  model::RankComms comms;
  const std::pair<const spec::GroupConfig*, std::unique_ptr<comm::Communicator>*> groups[] = {
      {&join.tp, &comms.tp}, {&join.ep, &comms.ep}, {&join.pp, &comms.pp}, {&join.ids, &comms.ids}};
  for (const auto& [config, communicator] : groups) {
    Result<std::unique_ptr<comm::Communicator>> joined =
        JoinOne(*config, join, rank, listener, secret);
    if (!joined.ok()) {
      return joined.error().WithContext(fmt::format("rank {} joining group {}", rank, config->id));
    }
    *communicator = *std::move(joined);
  }
  return comms;
}

}  // namespace inferd::worker
