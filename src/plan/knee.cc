// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "plan/simulate.h"

#include <algorithm>

namespace inferd::plan {

Result<Knee> FindKnee(const SimulateOptions& options,
                      const std::vector<TraceRequest>& trace,
                      double share,
                      std::int64_t requests) {
  constexpr int kBisections = 7;
  SimulateOptions at = options;
  at.max_requests = requests;
  Knee knee;
  const auto attains = [&](double scale) -> Result<bool> {
    at.rate_scale = scale;
    INFERD_ASSIGN(const SimulateResult result, Simulate(at, trace));
    knee.tried.emplace_back(result.rate, result.attained);
    const bool ok = result.attained >= share;
    if (ok && result.rate > knee.rate) {
      knee.rate = result.rate;
      knee.at = result;
    }
    return ok;
  };
  double low = 0;
  double high = options.rate_scale;
  INFERD_ASSIGN(bool ok, attains(high));
  for (int i = 0; i < 20 && ok; ++i) {
    low = high;
    high *= 2;
    INFERD_ASSIGN(ok, attains(high));
  }
  for (int i = 0; i < 20 && low == 0; ++i) {
    INFERD_ASSIGN(const bool fits, attains(high / 2));
    (fits ? low : high) = high / 2;
  }
  for (int i = 0; i < kBisections && low > 0; ++i) {
    const double middle = (low + high) / 2;
    INFERD_ASSIGN(const bool fits, attains(middle));
    (fits ? low : high) = middle;
  }
  std::ranges::sort(knee.tried);
  return knee;
}

}  // namespace inferd::plan
