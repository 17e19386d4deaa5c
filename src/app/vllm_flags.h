// SPDX-License-Identifier: Apache-2.0
// vLLM's command line, for servers that were started with it: what inferd does with each flag that
// is not its own. What only costs time or memory is ignored with a warning; what would change
// answers, safety or what is served is refused with a hint.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::app {

enum class FlagShape {
  kSwitch,    // --x, --no-x, --x=false
  kValue,     // --x V, --x=V
  kJson,      // a value; also --x.key V
  kJsonList,  // ["a", "b"] of vLLM, which becomes the a,b of inferd
  kOptional,  // --x, --x V
  kList,      // --x V W ...
};

enum class FlagFate {
  kOwn,      // a flag of inferd; the text says how it differs, if it does
  kAlias,    // the text is the flag of inferd that takes its place
  kAnyway,   // inferd does so without it; the text says what
  kIgnored,  // the text says why
  kRefused,  // the text says what to do instead
};

struct VllmFlag {
  std::string_view names;  // "--nnodes -n"; a name that ends with * stands for all that begin so
  FlagShape shape;
  FlagFate fate;
  std::string_view text;
  /// The fate is that of these values; empty: of all that no earlier row of the flag names.
  std::string_view values = {};
};

/// The table: rows of one flag follow each other and have one shape; the last is for any value.
std::span<const VllmFlag> VllmFlags();

/// The names that inferd accepts, for guesses at typos.
std::vector<std::string> VllmFlagNames();

struct VllmWords {
  std::vector<std::string> words;     // the command line in inferd's flags
  std::vector<std::string> warnings;  // one for each flag that has no effect
  std::string master_address;         // of --master-addr and --master-port; empty: none
  std::string master_port;
};

/// Whether a name ("--tp", "--no-access-log") is a flag of inferd: such words are never touched,
/// but for JSON lists.
using IsOwnFlag = std::function<bool(const std::string&)>;

/// Words that neither inferd nor vLLM knows stay. kInvalidArgument, with a hint: refused flags, and
/// flags without their value.
Result<VllmWords> TranslateVllmFlags(const std::vector<std::string>& words,
                                     const IsOwnFlag& is_own);

/// --leader of a host, from --master-addr: where the first one listens, what the others call.
std::string LeaderOfMaster(const VllmWords& vllm, std::int64_t node_rank);

}  // namespace inferd::app
