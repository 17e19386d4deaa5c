// SPDX-License-Identifier: Apache-2.0
// From the flags of `inferd plan --gpus` to what the plan room asks.
#pragma once

#include "app/command_line.h"
#include "inferd/result.h"
#include "plan/layouts.h"

#include <string>
#include <vector>

namespace inferd::app {

/// Takes `--tp auto`, `--pp auto` and `--ep auto` out of the words of `inferd plan`, and notes
/// which of the three were given.
void TakeAuto(std::vector<std::string>* words, PlanFlags* flags);

/// Reads model, profile and topology. Errors name the flag.
Result<plan::LayoutRequest> MakeLayoutRequest(const CommandLine& line);

/// "2s", "50ms", "1.5": seconds.
Result<double> ParseSeconds(const std::string& flag, const std::string& text);
Result<double> ParseNumber(const std::string& flag,
                           const std::string& text,
                           double min,
                           double max);

}  // namespace inferd::app
