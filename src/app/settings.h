// SPDX-License-Identifier: Apache-2.0
// The table of settings: key in the file, flags, environment variable, help, and where the value
// lives in a Config. All four sources go through it, so they know the same names and check the same
// ranges.
#pragma once

#include "inferd/config.h"
#include "inferd/result.h"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace inferd::app {

using SettingValue = std::variant<std::string*,
                                  std::int64_t*,
                                  double*,
                                  bool*,
                                  std::vector<std::string>*,
                                  std::vector<std::int64_t>*>;

struct Setting {
  std::string key;                 // "parallel.tp"
  std::vector<std::string> flags;  // the first one is shown; the rest are aliases
  std::string help;
  SettingValue value;
  std::int64_t min = 0;
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
  std::vector<std::string> choices = {};  // of a string; empty: any
  bool choice_takes_more = false;         // a choice may be followed by ":..."
  bool secret = false;                    // never printed
  std::vector<std::string> zeros = {};    // of an integer: words that stand for 0
};

/// All settings, bound to `config`, which must outlive the table.
std::vector<Setting> Settings(Config* config);

/// Sets from text, as flags and the environment give it. Lists are comma-separated. Integers may be
/// written as vLLM reads them: 8k, 1.5m (k, m, g, t: powers of 1000), 8K, 2G (powers of 1024, whole
/// numbers only). `source` names where the text came from ("--tp", "INFERD_TP").
Result<> SetFromText(const Setting& setting, std::string_view source, const std::string& text);
/// The value as YAML.
std::string ToYaml(const Setting& setting);
/// INFERD_MAX_MODEL_LEN for --max-model-len.
std::string EnvironmentName(const Setting& setting);

/// The most alike of `names`, or empty when none is near.
std::string Nearest(std::string_view asked, const std::vector<std::string>& names);

/// Sets what the environment has: INFERD_*, and LWS_* as defaults below it.
Result<> ApplyEnvironment(const std::vector<Setting>& settings);
/// Sets what the YAML text has; unknown keys are errors with the nearest match.
Result<> ApplyYaml(const std::string& text,
                   const std::string& file,
                   const std::vector<Setting>& settings);
/// The whole configuration as the file that would give it.
std::string PrintConfig(const std::vector<Setting>& settings);

}  // namespace inferd::app
