// SPDX-License-Identifier: Apache-2.0
// Median time of a barrier, and of an all-reduce by size, for each backend and count of ranks. One
// JSON line per figure:
//   comm_bench [max_ranks]
// Ranks are processes on this host, dealt to its CPUs in turn; the time is that of rank 0, over
// calls back to back. The barrier tells how far the CPUs are from one another, which on a shared
// host changes from one run to the next.
#include "comm/communicator.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace inferd::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTimeoutSeconds = 120;

struct Setup {
  std::string backend;
  int ranks = 2;
  std::vector<std::unique_ptr<TcpListener>> listeners;
  std::vector<std::string> endpoints;
};

Result<std::unique_ptr<Communicator>> Join(const Setup& setup, int rank) {
  GroupOptions options;
  options.id = "bench-" + std::to_string(::getppid());
  options.generation = static_cast<std::uint64_t>(setup.ranks);
  options.rank = rank;
  options.size = setup.ranks;
  if (setup.backend == "shm") {
    return JoinShm(options);
  }
  return JoinTcp(
      options, *setup.listeners[static_cast<std::size_t>(rank)], setup.endpoints, "bench");
}

void Pin(int rank) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(
      static_cast<std::size_t>(rank) % static_cast<std::size_t>(::sysconf(_SC_NPROCESSORS_ONLN)),
      &cpus);
  ::sched_setaffinity(0, sizeof cpus, &cpus);
}

/// Times `calls` calls of `body`; `reset` runs between them, untimed. `name` is JSON: the value of
/// "bench" and what follows it.
template <typename Body, typename Reset>
Result<> Time(const Setup& setup,
              const std::string& name,
              int calls,
              bool prints,
              const Body& body,
              const Reset& reset) {
  std::vector<double> times_us;
  for (int call = 0; call < calls; ++call) {
    const auto start = Clock::now();
    INFERD_TRY(body());
    times_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    reset();
  }
  std::sort(times_us.begin(), times_us.end());
  if (prints) {
    std::printf(
        "{\"bench\": %s, \"backend\": \"%s\", \"ranks\": %d, \"median_us\": %.2f, "
        "\"p99_us\": %.2f}\n",
        name.c_str(),
        setup.backend.c_str(),
        setup.ranks,
        times_us[times_us.size() / 2],
        times_us[times_us.size() * 99 / 100]);
    std::fflush(stdout);
  }
  return {};
}

Result<> TimeAll(const Setup& setup, int rank, Communicator& comm) {
  INFERD_TRY(Time(setup, "\"barrier\"", 2000, rank == 0, [&] { return comm.Barrier(); }, [] {}));
  for (std::size_t bytes = 256; bytes <= (4U << 20); bytes *= 4) {
    std::vector<float> data(bytes / sizeof(float), 1.0F);
    INFERD_TRY(Time(
        setup,
        "\"all_reduce\", \"bytes\": " + std::to_string(bytes),
        bytes <= (64U << 10) ? 2000 : 100,
        rank == 0,
        [&] { return comm.AllReduceSum(data); },
        [&] { std::fill(data.begin(), data.end(), 1.0F); }));
  }
  return {};
}

/// Runs one rank; rank 0 prints. Answers the exit status.
int RunRank(const Setup& setup, int rank) {
  auto joined = Join(setup, rank);
  if (!joined.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", rank, joined.error().message().c_str());
    return 1;
  }
  if (const auto done = TimeAll(setup, rank, **joined); !done.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", rank, done.error().message().c_str());
    return 1;
  }
  return 0;
}

int RunGroup(const std::string& backend, int ranks) {
  Setup setup;
  setup.backend = backend;
  setup.ranks = ranks;
  for (int r = 0; backend == "tcp" && r < ranks; ++r) {
    auto listener = ListenTcp("127.0.0.1");
    if (!listener.ok()) {
      std::fprintf(stderr, "%s\n", listener.error().message().c_str());
      return 1;
    }
    setup.endpoints.push_back((*listener)->endpoint());
    setup.listeners.push_back(*std::move(listener));
  }
  std::vector<pid_t> children;
  for (int r = 0; r < ranks; ++r) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(kTimeoutSeconds);
      Pin(r);
      ::_exit(RunRank(setup, r));
    }
    children.push_back(pid);
  }
  int failed = 0;
  for (const pid_t pid : children) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    failed += status != 0 ? 1 : 0;
  }
  return failed;
}

}  // namespace
}  // namespace inferd::comm

int main(int argc, char** argv) {
  const int max_ranks = argc > 1 ? std::clamp(std::atoi(argv[1]), 2, 8) : 4;
  int failed = 0;
  for (const char* backend : {"shm", "tcp"}) {
    for (int ranks = 2; ranks <= max_ranks; ranks *= 2) {
      failed += inferd::comm::RunGroup(backend, ranks);
    }
  }
  return failed == 0 ? 0 : 1;
}
