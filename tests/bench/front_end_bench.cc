// SPDX-License-Identifier: Apache-2.0
// The front end alone: a token source instead of an engine, one core for the server (source, I/O
// and request threads together), one for the client. Prints one JSON line per number of streams:
// events per second of server CPU, delay from the source to the client, memory of a stream.
//
//   front_end_bench MODEL.gguf [--streams 100,1000,10000] [--seconds 5] [--rate EVENTS_PER_S]
//
// With --rate the source is paced and the delays are those of that load; without, it makes the next
// token of all streams as soon as the I/O thread has taken the last ones (saturated).
#include "api/server/server.h"
#include "app/model_text.h"
#include "base/file.h"
#include "base/log.h"
#include "front_end_client.h"
#include "front_end_source.h"

#include <fmt/core.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::bench {
namespace {

struct Options {
  std::string model;
  std::vector<int> streams{100, 1000, 10000};
  int seconds = 5;
  std::int64_t rate = 0;
};

void Pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  sched_setaffinity(0, sizeof set, &set);
}

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

/// The child: serves until it is killed.
int RunServer(const Options& options, Shared* shared, int port_pipe) {
  Pin(0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto model = store::OpenModel(options.model);
  ModelConfig config;
  config.model = options.model;
  config.served_model_name = {"bench"};
  auto served = model.ok() ? app::MakeServedModel(*model, config)
                           : Result<std::shared_ptr<const api::ServedModel>>(model.error());
  if (!served.ok()) {
    fmt::print(stderr, "{}\n", served.error().message());
    return 1;
  }
  TokenSource source(model->spec, *(*served)->tokenizer, options.rate, shared);
  api::HttpOptions http;
  http.port = 0;
  http.access_log = false;
  http.max_connections = 20'000;
  http.request_queue = 20'000;
  http.idle_timeout_ms = 600'000;
  auto server = api::Server::Start(http, *served, &source);
  if (!server.ok()) {
    fmt::print(stderr, "{}\n", server.error().message());
    return 1;
  }
  const std::uint16_t port = (*server)->port();
  if (write(port_pipe, &port, sizeof port) != sizeof port) {
    return 1;
  }
  source.Run();
  return 0;
}

int Measure(const Options& options, int streams) {
  auto* const shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  int ends[2];
  if (shared == MAP_FAILED || pipe(ends) != 0) {
    return 1;
  }
  const pid_t child = fork();
  if (child == 0) {
    std::_Exit(RunServer(options, shared, ends[1]));
  }
  close(ends[1]);
  std::uint16_t port = 0;
  const bool started = read(ends[0], &port, sizeof port) == sizeof port;
  close(ends[0]);
  int status = 1;
  if (started) {
    Pin(1);
    status = RunClient({.port = port,
                        .streams = streams,
                        .seconds = options.seconds,
                        .paced_rate = options.rate,
                        .server = child},
                       shared);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  munmap(shared, sizeof(Shared));
  return status;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--streams" && i + 1 < argc) {
      options.streams.clear();
      for (char* at = std::strtok(argv[++i], ","); at != nullptr; at = std::strtok(nullptr, ",")) {
        options.streams.push_back(std::atoi(at));
      }
    } else if (word == "--seconds" && i + 1 < argc) {
      options.seconds = std::atoi(argv[++i]);
    } else if (word == "--rate" && i + 1 < argc) {
      options.rate = std::atoll(argv[++i]);
    } else {
      options.model = word;
    }
  }
  if (options.model.empty()) {
    fmt::print(stderr,
               "usage: front_end_bench MODEL.gguf [--streams 100,1000] [--seconds 5] [--rate N]\n");
    return 2;
  }
  RaiseDescriptorLimit();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (const int streams : options.streams) {
    if (streams < 1 || streams > kMaxStreams || Measure(options, streams) != 0) {
      fmt::print(stderr, "{} streams: failed (1 to {} are possible)\n", streams, kMaxStreams);
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace inferd::bench

int main(int argc, char** argv) { return inferd::bench::Main(argc, argv); }
