// SPDX-License-Identifier: Apache-2.0
#include "leader/launcher.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace inferd::leader {
namespace {

constexpr int kIdlePollMs = 1000;
constexpr int kStoppingPollMs = 20;
constexpr int kCannotStart = 127 << 8;  // wait status of an exit with 127

}  // namespace

LocalLauncher::LocalLauncher(LauncherOptions options, ExitCallback on_exit)
    : options_(std::move(options)),
      on_exit_(std::move(on_exit)),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  INFERD_CHECK(wake_fd_.valid());
  thread_ = std::thread([this] { Loop(); });
}

LocalLauncher::~LocalLauncher() { Stop(0); }

void LocalLauncher::Spawn(std::uint64_t worker_id) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back({worker_id, true});
  }
  Wake();
}

void LocalLauncher::Kill(std::uint64_t worker_id) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back({worker_id, false});
  }
  Wake();
}

void LocalLauncher::Stop(std::int64_t timeout_ms) {
  if (thread_.joinable()) {
    stop_deadline_ms_ = base::SteadyClock::Get().NowMs() + timeout_ms;
    stop_.store(true);
    Wake();
    thread_.join();
  }
}

void LocalLauncher::Wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = ::write(wake_fd_.get(), &one, sizeof one);
}

void LocalLauncher::Loop() {
  while (!stop_.load() || !children_.empty()) {
    std::vector<pollfd> fds{{wake_fd_.get(), POLLIN, 0}};
    for (const auto& [id, child] : children_) {
      fds.push_back({child.pidfd.get(), POLLIN, 0});
    }
    ::poll(fds.data(), fds.size(), stop_.load() ? kStoppingPollMs : kIdlePollMs);
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t ignored = ::read(wake_fd_.get(), &count, sizeof count);
    std::vector<Command> commands;
    {
      const std::lock_guard lock(mutex_);
      commands.swap(commands_);
    }
    for (const Command& command : commands) {
      if (command.spawn) {
        if (!stop_.load()) {
          Start(command.worker_id);
        }
      } else if (const auto child = children_.find(command.worker_id); child != children_.end()) {
        ::kill(child->second.pid, SIGKILL);
      }
    }
    if (stop_.load() && base::SteadyClock::Get().NowMs() >= stop_deadline_ms_) {
      for (const auto& [id, child] : children_) {
        ::kill(child.pid, SIGKILL);
      }
    }
    Reap();
  }
}

void LocalLauncher::Start(std::uint64_t worker_id) {
  ProcessOptions process;
  process.argv = {options_.worker_binary,
                  "worker",
                  "--leader",
                  options_.leader_address,
                  "--worker-id",
                  std::to_string(worker_id),
                  "--node-rank",
                  std::to_string(options_.node_rank)};
  if (!options_.data_address.empty()) {
    process.argv.insert(process.argv.end(), {"--data-address", options_.data_address});
  }
  process.environment = {{"INFERD_CLUSTER_SECRET", options_.secret}};
  Result<Process> child = leader::Spawn(process);
  if (!child.ok()) {
    log::Failure("leader", "worker {}: {}", worker_id, child.error().message());
    on_exit_(worker_id, kCannotStart);
    return;
  }
  log::Debug("leader", "worker {} is process {}", worker_id, child->pid);
  children_.emplace(worker_id, *std::move(child));
}

void LocalLauncher::Reap() {
  for (auto child = children_.begin(); child != children_.end();) {
    int status = 0;
    if (TryWait(child->second, &status)) {
      const std::uint64_t worker_id = child->first;
      child = children_.erase(child);
      on_exit_(worker_id, status);
    } else {
      ++child;
    }
  }
}

}  // namespace inferd::leader
