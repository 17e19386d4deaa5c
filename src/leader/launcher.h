// SPDX-License-Identifier: Apache-2.0
// Launcher: starts and ends worker processes on this host and, through node agents, on others. One
// thread owns all local children, so that their parent-death signal is that of the server.
#pragma once

#include "base/file.h"
#include "inferd/result.h"
#include "leader/process.h"
#include "rpc/control_server.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace inferd::leader {

struct LauncherOptions {
  std::string worker_binary;   // runs "worker"
  std::string leader_address;  // what local workers attach to: "unix:/path"
  std::string secret;
  std::string data_address;  // this host's address for data between hosts; empty: one host
  std::int32_t node_rank = 0;
};

/// Called on the launcher's thread when a local worker has ended.
using ExitCallback = std::function<void(std::uint64_t worker_id, int wait_status)>;

/// Thread-safe.
class LocalLauncher {
 public:
  LocalLauncher(LauncherOptions options, ExitCallback on_exit);
  /// Kills what is left and reaps it.
  ~LocalLauncher();

  /// Asynchronous: a worker that cannot be started is reported as an exit with status 127.
  void Spawn(std::uint64_t worker_id);
  /// SIGKILL; the exit callback follows. Unknown ids are ignored.
  void Kill(std::uint64_t worker_id);
  /// Waits up to timeout_ms for the workers to end by themselves, then kills them.
  void Stop(std::int64_t timeout_ms);

 private:
  struct Command {
    std::uint64_t worker_id;
    bool spawn;
  };

  void Loop();
  void Wake();
  void Start(std::uint64_t worker_id);
  void Reap();

  const LauncherOptions options_;
  const ExitCallback on_exit_;
  base::UniqueFd wake_fd_;
  std::mutex mutex_;
  std::vector<Command> commands_;
  std::atomic<bool> stop_{false};
  std::int64_t stop_deadline_ms_ = 0;          // written before stop_
  std::map<std::uint64_t, Process> children_;  // the thread's own
  std::thread thread_;
};

}  // namespace inferd::leader
