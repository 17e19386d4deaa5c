// SPDX-License-Identifier: Apache-2.0
// Traces: what requests come when. One JSON object per line; read for simulation, made for load
// that has no record.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::plan {

/// {"arrival_s": 0.25, "input_tokens": 1000, "output_tokens": 300, "prefix_id": 7,
/// "prefix_tokens": 512}; the last two may be left out. Requests of one prefix_id begin with the
/// same prefix_tokens tokens.
struct TraceRequest {
  double arrival_s = 0;
  std::int32_t input_tokens = 0;
  std::int32_t output_tokens = 0;
  std::int32_t prefix_id = -1;  // -1: none
  std::int32_t prefix_tokens = 0;
};

/// At most 20 million lines, in order of arrival. Errors name file, line and key.
Result<std::vector<TraceRequest>> ReadTrace(const std::string& path);
/// One line. `where` names it in messages.
Result<TraceRequest> ParseTraceLine(std::string_view where, std::string_view line);

struct TraceRecipe {
  std::int64_t requests = 1000;
  double rate = 1;      // per second, Poisson
  double input = 1000;  // means
  double output = 300;
  double spread = 0.5;  // standard deviation over mean of the lengths (log-normal); 0: all alike
  int prefixes = 0;     // distinct shared prefixes; 0: none
  double prefix_share = 0.5;  // of a prompt's mean
  std::uint64_t seed = 1;
};

/// The same recipe gives the same trace on every machine.
std::vector<TraceRequest> MakeTrace(const TraceRecipe& recipe);
Result<> WriteTrace(const std::vector<TraceRequest>& trace, const std::string& path);

}  // namespace inferd::plan
