// SPDX-License-Identifier: Apache-2.0
// NodeTable: the hosts of one server. Node 0 is this host; others are node agents that attach with
// their rank. Starts and ends workers on any of them.
#pragma once

#include "inferd/result.h"
#include "leader/launcher.h"
#include "rpc/control_server.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace inferd::leader {

/// Thread-safe.
class NodeTable {
 public:
  /// on_exit is called when a worker of any node has ended, with a sentence that says how.
  using WorkerExit = std::function<void(std::uint64_t worker_id, std::string how)>;

  NodeTable(std::int32_t num_nodes, LauncherOptions local, WorkerExit on_exit);

  /// Waits for the agents of nodes 1..num_nodes-1; names the missing ones on a deadline. give_up is
  /// polled.
  Result<> WaitForAgents(std::int64_t deadline_ms, const std::function<bool()>& give_up);
  /// Names a node that has been away for longer than the deadline; -1: none.
  std::int32_t LostNode(std::int64_t deadline_ms) const;
  /// CPUs each agent announced; for placement. [num_nodes], 0 for node 0.
  std::vector<std::int32_t> AgentCpus() const;

  /// A worker for a node whose agent is away is started when the agent comes back.
  void Spawn(std::uint64_t worker_id, std::int32_t node);
  void Kill(std::uint64_t worker_id, std::int32_t node);
  void Stop(std::int64_t timeout_ms);

  // From the control server, for peers that are node agents.
  void OnAgentHello(const std::shared_ptr<rpc::Peer>& peer);
  void OnAgentMessage(const std::shared_ptr<rpc::Peer>& peer, const rpc::FromWorker& message);
  void OnAgentClosed(const std::shared_ptr<rpc::Peer>& peer);

 private:
  struct Agent {
    std::shared_ptr<rpc::Peer> peer;
    std::set<std::uint64_t> workers;                   // started there, or to be started
    std::chrono::steady_clock::time_point away_since;  // when peer is null
  };

  /// Takes mutex_.
  void ForgetOldStreamOf(const rpc::Peer& peer);
  /// Of an agent that joined, whatever rank it named; -1: it is not here. Under mutex_.
  std::int32_t NodeOf(const rpc::Peer* peer) const;
  /// The rank an agent gets: the one it names, or for -1 the first that is free. -1: there is none.
  std::int32_t GiveRank(std::int32_t wanted) const;

  const std::int32_t num_nodes_;
  const WorkerExit on_exit_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::int32_t, Agent> agents_;
  LocalLauncher local_;
};

}  // namespace inferd::leader
