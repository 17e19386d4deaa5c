// SPDX-License-Identifier: Apache-2.0
// `inferd worker`: started by the leader, not by people.
#include "app/commands.h"
#include "base/error.h"
#include "worker/worker.h"

#include <signal.h>

#include <charconv>
#include <cstdlib>

namespace inferd::app {
namespace {

template <class T>
Result<> ParseNumber(const std::string& flag, const std::string& text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgument("inferd worker: {} must be a number, not '{}'", flag, text);
  }
  return {};
}

}  // namespace

Result<> Worker(const std::vector<std::string>& args) {
  // Ctrl-C goes to the whole process group; the leader decides when its workers end.
  signal(SIGINT, SIG_IGN);
  worker::WorkerOptions options;
  if (args.size() % 2 != 0) {
    return InvalidArgument(
        "inferd worker: flags come in pairs; this command is for the leader's use");
  }
  for (std::size_t i = 0; i < args.size(); i += 2) {
    const std::string& flag = args[i];
    const std::string& value = args[i + 1];
    if (flag == "--leader") {
      options.leader = value;
    } else if (flag == "--worker-id") {
      INFERD_TRY(ParseNumber(flag, value, &options.worker_id));
    } else if (flag == "--node-rank") {
      INFERD_TRY(ParseNumber(flag, value, &options.node_rank));
    } else if (flag == "--data-address") {
      options.data_address = value;
    } else {
      return InvalidArgument("inferd worker: unknown flag {}; this command is for the leader's use",
                             flag);
    }
  }
  if (const char* const secret = std::getenv("INFERD_CLUSTER_SECRET")) {
    options.secret = secret;
  }
  if (options.leader.empty()) {
    return InvalidArgument(
        "inferd worker: --leader is missing; this command is for the leader's use");
  }
  return worker::RunWorker(options);
}

}  // namespace inferd::app
