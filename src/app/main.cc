// SPDX-License-Identifier: Apache-2.0
// The `inferd` binary: reads the command line and runs one command.
#include "app/command_line.h"
#include "app/commands.h"
#include "app/exit_status.h"
#include "app/settings.h"
#include "app/signals.h"
#include "base/log.h"
#include "inferd/version.h"

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

using inferd::Result;

inferd::log::Level ToLevel(const std::string& name) {
  using inferd::log::Level;
  return name == "debug"     ? Level::kDebug
         : name == "warning" ? Level::kWarning
         : name == "error"   ? Level::kError
                             : Level::kInfo;
}

Result<> Run(const inferd::app::CommandLine& line) {
  if (line.command == "worker") {
    return inferd::app::Worker(line.positional);
  }
  if (line.command == "fetch") {
    return inferd::app::FetchModel(line);
  }
  if (line.command == "tokenize") {
    return inferd::app::TokenizeText(line.config, line.positional);
  }
  if (line.command == "plan") {
    return inferd::app::PrintPlan(line);
  }
  if (line.command == "topo") {
    return inferd::app::PrintTopology(line);
  }
  if (line.command == "usage") {
    return inferd::app::PrintUsage(line);
  }
  if (line.command == "bench") {
    return inferd::app::Bench(line);
  }
  return inferd::app::Serve(line.config);
}

/// The exit status.
Result<int> RunForStatus(inferd::app::CommandLine line) {
  if (line.command == "serve") {
    inferd::log::Info("app",
                      "inferd {} with this configuration\n{}",
                      inferd::kVersion,
                      inferd::app::PrintConfig(inferd::app::Settings(&line.config)));
  }
  if (line.command == "serve" || line.command == "run-batch" || line.command == "bench") {
    if (const Result<> there = inferd::app::CheckDeviceIsThere(line.config); !there.ok()) {
      std::fprintf(stderr, "inferd: %s\n", there.error().message().c_str());
      return inferd::app::kNoDeviceStatus;
    }
  }
  if (line.command == "doctor") {
    return inferd::app::Doctor();
  }
  if (line.command == "run-batch") {
    return inferd::app::RunBatch(line);
  }
  INFERD_TRY(Run(line));
  return 0;
}

int Main(const std::vector<std::string>& args) {
  auto line = inferd::app::ParseCommandLine(args);
  if (!line.ok()) {
    std::fprintf(stderr, "inferd: %s\n", line.error().message().c_str());
    return static_cast<int>(inferd::app::ExitStatus::kConfig);
  }
  if (line->help) {
    std::fputs(inferd::app::HelpText(line->command).c_str(), stdout);
    return 0;
  }
  if (line->version || line->command == "version") {
    std::printf("inferd %s\n", std::string(inferd::kVersion).c_str());
    return 0;
  }
  if (line->print_config) {
    std::fputs(inferd::app::PrintConfig(inferd::app::Settings(&line->config)).c_str(), stdout);
    return 0;
  }
  inferd::log::Init(ToLevel(line->config.log.level),
                    line->command == "worker" ? "worker" : "leader");
  for (const std::string& warning : line->warnings) {
    inferd::log::Warning("app", "{}", warning);
  }
  if (line->command != "worker") {
    inferd::app::InstallSignalHandlers();
  }
  const Result<int> result = RunForStatus(*std::move(line));
  if (!result.ok()) {
    std::fprintf(stderr, "inferd: %s\n", result.error().message().c_str());
    return static_cast<int>(inferd::app::StatusOf(result.error()));
  }
  return *result;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Main(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "inferd: %s\n", error.what());
    return static_cast<int>(inferd::app::ExitStatus::kInternal);
  }
}
