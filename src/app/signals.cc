// SPDX-License-Identifier: Apache-2.0
#include "app/signals.h"

#include "base/check.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace inferd::app {
namespace {

std::atomic<int> g_signals{0};
int g_wake_fd = -1;

extern "C" void OnSignal(int signal_number) {
  if (g_signals.fetch_add(1) > 0) {
    _exit(128 + signal_number);
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(g_wake_fd, &one, sizeof one);
}

}  // namespace

void InstallSignalHandlers() {
  g_wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  INFERD_CHECK(g_wake_fd >= 0);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

bool StopRequested() { return g_signals.load() > 0; }

void WaitForStop(int timeout_ms) {
  pollfd watched{g_wake_fd, POLLIN, 0};
  poll(&watched, 1, timeout_ms);
}

}  // namespace inferd::app
