// SPDX-License-Identifier: Apache-2.0
#include "leader/node_agent.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "leader/host_resources.h"
#include "leader/launcher.h"
#include "rpc/control_client.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace inferd::leader {
namespace {

constexpr std::chrono::milliseconds kAttemptDeadline{2'000};
constexpr std::int64_t kWorkerGraceMs = 2'000;

/// Wakes an agent that waits in Receive when `stop` is set.
class StopWatcher {
 public:
  StopWatcher(const std::atomic<bool>& stop, rpc::ControlClient* client)
      : thread_([this, &stop, client] {
          std::unique_lock lock(mutex_);
          while (!done_) {
            if (stop.load()) {
              client->Close();
              return;
            }
            changed_.wait_for(lock, std::chrono::milliseconds(50));
          }
        }) {}
  ~StopWatcher() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  StopWatcher(const StopWatcher&) = delete;
  StopWatcher& operator=(const StopWatcher&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

Result<std::unique_ptr<rpc::ControlClient>> AttachPatiently(const NodeAgentOptions& options,
                                                            const std::atomic<bool>& stop) {
  const base::Clock& clock = base::SteadyClock::Get();
  const std::int64_t give_up_ms = clock.NowMs() + options.connect_deadline_ms;
  rpc::Hello hello;
  hello.kind = rpc::Hello::Kind::kNodeAgent;
  hello.node_rank = options.node_rank;
  hello.pid = ::getpid();
  hello.num_cpus = static_cast<std::int32_t>(AllowedCpus().size());
  hello.memory_bytes = AvailableMemoryBytes();
  for (;;) {
    auto client = rpc::Attach({options.leader, options.secret, kAttemptDeadline}, hello);
    if (client.ok() || client.error().code() != Code::kUnavailable || clock.NowMs() >= give_up_ms ||
        stop.load()) {
      return client;
    }
  }
}

/// One attachment: true when the leader said to shut down.
bool Serve(const NodeAgentOptions& options, rpc::ControlClient* client) {
  LauncherOptions launcher_options;
  launcher_options.worker_binary = options.worker_binary;
  launcher_options.leader_address = options.leader;
  launcher_options.secret = options.secret;
  launcher_options.data_address = options.data_address;
  launcher_options.node_rank = options.node_rank;
  LocalLauncher launcher(std::move(launcher_options),
                         [client](std::uint64_t worker_id, int wait_status) {
                           client->Send(rpc::WorkerExited{worker_id, wait_status});
                         });
  for (;;) {
    Result<rpc::ToWorker> message = client->Receive();
    if (!message.ok()) {
      log::Warning("leader", "node {}: {}", options.node_rank, message.error().message());
      return false;
    }
    if (const auto* spawn = std::get_if<rpc::SpawnWorker>(&*message)) {
      launcher.Spawn(spawn->worker_id);
    } else if (const auto* kill = std::get_if<rpc::KillWorker>(&*message)) {
      launcher.Kill(kill->worker_id);
    } else if (std::holds_alternative<rpc::Shutdown>(*message)) {
      launcher.Stop(kWorkerGraceMs);
      return true;
    }
  }
}

}  // namespace

Result<> RunNodeAgent(const NodeAgentOptions& options, const std::atomic<bool>& stop) {
  NodeAgentOptions effective = options;
  if (effective.worker_binary.empty()) {
    INFERD_ASSIGN(effective.worker_binary, OwnBinary());
  }
  while (!stop.load()) {
    Result<std::unique_ptr<rpc::ControlClient>> client = AttachPatiently(effective, stop);
    if (!client.ok()) {
      return stop.load() ? Result<>() : Result<>(client.error());
    }
    log::Info("leader", "node {} attached to {}", options.node_rank, options.leader);
    const StopWatcher watcher(stop, client->get());
    if (Serve(effective, client->get())) {
      return {};
    }
  }
  return {};
}

}  // namespace inferd::leader
