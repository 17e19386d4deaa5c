// SPDX-License-Identifier: Apache-2.0
#include "leader/node_table.h"

#include "base/error.h"
#include "base/log.h"

#include <fmt/ranges.h>

#include <chrono>
#include <utility>

namespace inferd::leader {

NodeTable::NodeTable(std::int32_t num_nodes, LauncherOptions local, WorkerExit on_exit)
    : num_nodes_(num_nodes),
      on_exit_(std::move(on_exit)),
      local_(std::move(local), [this](std::uint64_t id, int wait_status) {
        on_exit_(id, DescribeExit(wait_status));
      }) {}

Result<> NodeTable::WaitForAgents(std::int64_t deadline_ms, const std::function<bool()>& give_up) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(deadline_ms);
  std::unique_lock lock(mutex_);
  const auto missing = [this] {
    std::vector<std::int32_t> nodes;
    for (std::int32_t node = 1; node < num_nodes_; ++node) {
      const auto agent = agents_.find(node);
      if (agent == agents_.end() || agent->second.peer == nullptr) {
        nodes.push_back(node);
      }
    }
    return nodes;
  };
  while (!missing().empty()) {
    if (give_up()) {
      return Cancelled("stopped while waiting for other nodes");
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return DeadlineExceeded(
          "node(s) {} did not join within {} ms; start them with --nnodes {} --node-rank N "
          "--leader "
          "HOST:PORT and the same cluster secret",
          fmt::join(missing(), ", "),
          deadline_ms,
          num_nodes_);
    }
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
  return {};
}

std::vector<std::int32_t> NodeTable::AgentCpus() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::int32_t> cpus(static_cast<std::size_t>(num_nodes_), 0);
  for (const auto& [node, agent] : agents_) {
    if (agent.peer != nullptr) {
      cpus[static_cast<std::size_t>(node)] = agent.peer->hello().num_cpus;
    }
  }
  return cpus;
}

void NodeTable::Spawn(std::uint64_t worker_id, std::int32_t node) {
  if (node == 0) {
    local_.Spawn(worker_id);
    return;
  }
  const std::lock_guard lock(mutex_);
  Agent& agent = agents_[node];
  agent.workers.insert(worker_id);
  if (agent.peer != nullptr) {
    agent.peer->Send(rpc::SpawnWorker{worker_id});
  }
}

void NodeTable::Kill(std::uint64_t worker_id, std::int32_t node) {
  if (node == 0) {
    local_.Kill(worker_id);
    return;
  }
  const std::lock_guard lock(mutex_);
  Agent& agent = agents_[node];
  agent.workers.erase(worker_id);
  if (agent.peer != nullptr) {
    agent.peer->Send(rpc::KillWorker{worker_id});
  }
}

void NodeTable::Stop(std::int64_t timeout_ms) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [node, agent] : agents_) {
      if (agent.peer != nullptr) {
        agent.peer->Send(rpc::Shutdown{});
      }
    }
  }
  local_.Stop(timeout_ms);
}

void NodeTable::OnAgentHello(const std::shared_ptr<rpc::Peer>& peer) {
  ForgetOldStreamOf(*peer);
  const std::lock_guard lock(mutex_);
  const std::int32_t wanted = peer->hello().node_rank;
  const std::int32_t node = GiveRank(wanted);
  const auto refuse = [&peer](const Error& error) {
    log::Warning("leader", "refused a node agent: {}", error.message());
    peer->Refuse(error);
  };
  if (node < 1 || node >= num_nodes_) {
    return refuse(wanted < 0 ? AlreadyExists("all ranks of the {} nodes are taken", num_nodes_)
                             : InvalidArgument("--node-rank {} is not one of 1 to {}: the leader "
                                               "was started with --nnodes {}",
                                               wanted,
                                               num_nodes_ - 1,
                                               num_nodes_));
  }
  Agent& agent = agents_[node];
  if (agent.peer != nullptr) {
    return refuse(
        AlreadyExists("node rank {} is taken by another host; give each host its own "
                      "--node-rank",
                      node));
  }
  log::Info("leader", "node {} joined with {} CPU(s)", node, peer->hello().num_cpus);
  agent.peer = peer;
  for (const std::uint64_t worker_id : agent.workers) {
    peer->Send(rpc::SpawnWorker{worker_id});
  }
  changed_.notify_all();
}

void NodeTable::OnAgentMessage(const std::shared_ptr<rpc::Peer>& peer,
                               const rpc::FromWorker& message) {
  const auto* exited = std::get_if<rpc::WorkerExited>(&message);
  if (exited == nullptr) {
    peer->Close();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (const std::int32_t node = NodeOf(peer.get()); node > 0) {
      agents_[node].workers.erase(exited->worker_id);
    }
  }
  on_exit_(exited->worker_id, DescribeExit(exited->wait_status));
}

void NodeTable::OnAgentClosed(const std::shared_ptr<rpc::Peer>& peer) {
  std::int32_t node = -1;
  std::set<std::uint64_t> lost;
  {
    const std::lock_guard lock(mutex_);
    node = NodeOf(peer.get());
    const auto agent = agents_.find(node);
    if (agent == agents_.end() || agent->second.peer != peer) {
      return;
    }
    agent->second.peer.reset();
    agent->second.away_since = std::chrono::steady_clock::now();
    lost.swap(agent->second.workers);
  }
  log::Warning("leader", "node {} is gone, and {} worker(s) with it", node, lost.size());
  for (const std::uint64_t worker_id : lost) {
    on_exit_(worker_id, fmt::format("node {} is gone", node));
  }
}

// An agent attaches again when its stream broke, which it may notice first.
void NodeTable::ForgetOldStreamOf(const rpc::Peer& peer) {
  std::shared_ptr<rpc::Peer> old;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [node, agent] : agents_) {
      if (agent.peer != nullptr && agent.peer->hello().worker_id != 0 &&
          agent.peer->hello().worker_id == peer.hello().worker_id) {
        old = agent.peer;
      }
    }
  }
  if (old != nullptr) {
    OnAgentClosed(old);
    old->Close();
  }
}

std::int32_t NodeTable::NodeOf(const rpc::Peer* peer) const {
  for (const auto& [node, agent] : agents_) {
    if (agent.peer.get() == peer) {
      return node;
    }
  }
  return -1;
}

std::int32_t NodeTable::LostNode(std::int64_t deadline_ms) const {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  for (const auto& [node, agent] : agents_) {
    if (agent.peer == nullptr && agent.away_since != std::chrono::steady_clock::time_point() &&
        now - agent.away_since > std::chrono::milliseconds(deadline_ms)) {
      return node;
    }
  }
  return -1;
}

std::int32_t NodeTable::GiveRank(std::int32_t wanted) const {
  if (wanted >= 0) {
    return wanted;
  }
  for (std::int32_t node = 1; node < num_nodes_; ++node) {
    const auto agent = agents_.find(node);
    if (agent == agents_.end() || agent->second.peer == nullptr) {
      return node;
    }
  }
  return -1;
}

}  // namespace inferd::leader
