// SPDX-License-Identifier: Apache-2.0
#include "leader/node_agent.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "leader/host_resources.h"
#include "leader/launcher.h"
#include "rpc/control_client.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

namespace inferd::leader {
namespace {

constexpr std::chrono::milliseconds kAttemptDeadline{2'000};
constexpr std::int64_t kWorkerGraceMs = 2'000;
constexpr std::chrono::milliseconds kReattachPause{200};
/// Longer than a leader takes to notice a dead link.
constexpr std::int64_t kTakenRankMs = 10'000;

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

/// For so long, or until `stop` is set.
void Pause(std::chrono::milliseconds most, const std::atomic<bool>& stop) {
  const auto end = std::chrono::steady_clock::now() + most;
  while (!stop.load() && std::chrono::steady_clock::now() < end) {
    ::poll(nullptr, 0, 20);
  }
}

/// Of this process's life: the leader knows it again by it.
std::uint64_t RandomId() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random() | 1;
}

Result<std::unique_ptr<rpc::ControlClient>> AttachPatiently(const NodeAgentOptions& options,
                                                            std::uint64_t id,
                                                            std::int64_t deadline_ms,
                                                            const std::atomic<bool>& stop) {
  const base::Clock& clock = base::SteadyClock::Get();
  const std::int64_t give_up_ms = clock.NowMs() + deadline_ms;
  rpc::Hello hello;
  hello.kind = rpc::Hello::Kind::kNodeAgent;
  hello.worker_id = id;
  hello.node_rank = options.node_rank;
  hello.pid = ::getpid();
  hello.num_cpus = static_cast<std::int32_t>(AllowedCpus().size());
  hello.memory_bytes = AvailableMemoryBytes();
  for (;;) {
    const auto left =
        std::chrono::milliseconds(std::max<std::int64_t>(give_up_ms - clock.NowMs(), 1));
    auto client =
        rpc::Attach({options.leader, options.secret, std::min(kAttemptDeadline, left)}, hello);
    if (client.ok() || client.error().code() != Code::kUnavailable || stop.load()) {
      return client;
    }
    if (clock.NowMs() >= give_up_ms) {
      return Unavailable(
          "the leader at {} could not be reached within {} s: no such name, nobody listens there, "
          "or the cluster secrets differ ({})",
          options.leader,
          deadline_ms / 1000,
          client.error().message());
    }
  }
}

/// The leader has answered, and will give the same answer again.
bool IsRefusal(Code code) {
  return code == Code::kFailedPrecondition || code == Code::kAlreadyExists ||
         code == Code::kInvalidArgument || code == Code::kUnauthenticated;
}

/// One attachment: ok when the leader said to shut down, else why the stream ended. `served` is set
/// when the leader has asked for anything.
Result<> Serve(const NodeAgentOptions& options, rpc::ControlClient* client, bool* served) {
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
    INFERD_ASSIGN(const rpc::ToWorker message, client->Receive());
    *served = true;
    if (const auto* spawn = std::get_if<rpc::SpawnWorker>(&message)) {
      launcher.Spawn(spawn->worker_id);
    } else if (const auto* kill = std::get_if<rpc::KillWorker>(&message)) {
      launcher.Kill(kill->worker_id);
    } else if (std::holds_alternative<rpc::Shutdown>(message)) {
      launcher.Stop(kWorkerGraceMs);
      return {};
    }
  }
}

}  // namespace

Result<> RunNodeAgent(const NodeAgentOptions& options, const std::atomic<bool>& stop) {
  NodeAgentOptions effective = options;
  if (effective.worker_binary.empty()) {
    INFERD_ASSIGN(effective.worker_binary, OwnBinary());
  }
  const base::Clock& clock = base::SteadyClock::Get();
  const std::uint64_t id = RandomId();
  bool served = false;
  std::int64_t deadline_ms = options.connect_deadline_ms;
  std::int64_t taken_until_ms = 0;  // our rank, by the stream of a host that is gone; 0: it is not
  while (!stop.load()) {
    Result<std::unique_ptr<rpc::ControlClient>> client =
        AttachPatiently(effective, id, deadline_ms, stop);
    if (!client.ok()) {
      return stop.load() ? Result<>() : Result<>(client.error());
    }
    log::Info("leader", "node {} attached to {}", options.node_rank, options.leader);
    Result<> ended;
    {
      const StopWatcher watcher(stop, client->get());
      ended = Serve(effective, client->get(), &served);
    }
    if (ended.ok()) {
      return {};
    }
    log::Warning("leader", "node {}: {}", options.node_rank, ended.error().message());
    if (ended.error().code() == Code::kAlreadyExists) {
      // Perhaps the leader has not noticed yet that the host which had this rank is gone.
      taken_until_ms = taken_until_ms != 0 ? taken_until_ms : clock.NowMs() + kTakenRankMs;
    } else {
      taken_until_ms = 0;
    }
    if (IsRefusal(ended.error().code()) && clock.NowMs() >= taken_until_ms) {
      return ended;
    }
    deadline_ms = served ? options.peer_deadline_ms : options.connect_deadline_ms;
    Pause(kReattachPause, stop);
  }
  return {};
}

}  // namespace inferd::leader
