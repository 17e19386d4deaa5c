// SPDX-License-Identifier: Apache-2.0
// The subcommands; each in its own file. They return the process's exit status after reporting
// errors.
#pragma once

#include "app/command_line.h"
#include "inferd/config.h"
#include "inferd/result.h"
#include "leader/leader.h"
#include "store/model.h"

#include <string>
#include <vector>

namespace inferd::app {

Result<> Serve(const Config& config);
Result<> Worker(const std::vector<std::string>& args);
Result<> FetchModel(const CommandLine& line);
Result<> TokenizeText(const Config& config, const std::vector<std::string>& words);
Result<> PrintPlan(const CommandLine& line);
Result<> PrintTopology(const CommandLine& line);
Result<> GenerateTrace(const CommandLine& line);
Result<> SimulateTrace(const CommandLine& line);
Result<> PrintUsage(const CommandLine& line);
Result<> Bench(const CommandLine& line);
/// What is wrong with this host. The exit status: 1 when something is.
int Doctor();
/// The process's exit status.
Result<int> RunBatch(const CommandLine& line);

/// Finds the model, downloading it first if it is a known name that is not there (unless offline),
/// and opens it.
/// `device` as --device: what it multiplies decides in which form quantised weights stay.
Result<store::Model> FindModel(const ModelConfig& config, const std::string& device = "cpu");
/// From --cluster-secret-file or INFERD_CLUSTER_SECRET; empty: none given.
Result<std::string> ClusterSecret(const ClusterConfig& cluster);
/// Waits for the model to be loaded, with a bar; returns early when a signal asks for the end.
Result<> WaitUntilReady(leader::Leader* leader);
/// Exit status when the devices that --device names are not there.
inline constexpr int kNoDeviceStatus = 3;
/// Of a command that runs a model on this host: the devices that --device names are there.
Result<> CheckDeviceIsThere(const Config& config);
/// What the leader needs to know of configuration and model.
Result<leader::LeaderOptions> MakeLeaderOptions(const Config& config, const store::Model& model);

}  // namespace inferd::app
