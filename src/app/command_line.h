// SPDX-License-Identifier: Apache-2.0
// From argv to a Config and what to do with it.
#pragma once

#include "inferd/config.h"
#include "inferd/result.h"

#include <cstdint>
#include <string>
#include <vector>

namespace inferd::app {

/// What `inferd bench` measures: each prompt length, then each pair of streams and context.
struct BenchOptions {
  std::vector<std::int64_t> prompt_tokens{512};
  std::vector<std::int64_t> streams{1, 8};
  std::vector<std::int64_t> context{128};
  std::int64_t output_tokens = 64;
  std::int64_t rounds = 3;
  std::string write_profile;  // a file; empty: none is written
};

/// Flags of `inferd plan` and `inferd topo`, as texts; cluster_plan.cc reads them.
struct PlanFlags {
  std::string gpus, nodes, topology, devices_file;
  std::string rate, input, output, target_ttft, redundancy;
  std::string weight_bits;
  std::string tp, pp, ep;  // "auto", or empty
  // Of traces and simulations.
  std::string simulate, generate_trace, requests, spread, prefixes, trace_seed;
  std::string layouts, cold_start, lose_node_at, autoscale;
  bool prewarmed = false, find_knee = false;
  bool json = false;
};

struct CommandLine {
  std::string command;                  // "serve" when none is given
  std::vector<std::string> positional;  // but for serve's MODEL
  Config config;
  std::string since = "30d";                  // of `usage`
  std::vector<std::string> by{"key", "day"};  // of `usage`
  bool json = false;                          // of `usage` and `bench`
  BenchOptions bench;
  std::string input_file, output_file;  // of `run-batch`
  bool overwrite = false;               // of `run-batch`
  PlanFlags plan;                       // of `plan` and `topo`
  bool help = false;
  bool print_config = false;
  bool version = false;
  std::vector<std::string> warnings;  // of vLLM's flags that have no effect; for the log
};

/// `args` without argv[0]. Applies default < file (--config or INFERD_CONFIG) < environment <
/// flags.
Result<CommandLine> ParseCommandLine(const std::vector<std::string>& args);

/// The text of --help for a command.
std::string HelpText(const std::string& command);

}  // namespace inferd::app
