// SPDX-License-Identifier: Apache-2.0
// A device profile from what was measured: the known one of a like device, with the rates and fixed
// costs that explain the measurements best. Pure functions.
#pragma once

#include "cost/cost_model.h"
#include "cost/device_profile.h"
#include "inferd/result.h"

#include <cstdint>
#include <string>
#include <vector>

namespace inferd::cost {

/// One measurement of a replica of one rank, alone on its device.
struct Observation {
  std::int64_t streams = 0;  // that generate at once; 0: a prefill
  std::int64_t context = 0;  // tokens of the prompt (prefill), or before the new one (decode)
  double seconds = 0;        // of the prefill, or of a step of the decode
};

/// What was measured, on what.
struct Measured {
  StageCost stage;
  double bytes_per_weight = 2;  // as in the ledger
  std::int64_t max_batched_tokens = 512;
  std::vector<Observation> observations;
};

/// What the model says of such a measurement.
double PredictSeconds(const Measured& measured,
                      const Observation& observation,
                      const DeviceProfile& device);

struct FittedProfile {
  DeviceProfile device;
  double mean_error = 0;  // of the predictions, as a share of what was measured
  double worst_error = 0;
};

/// Rates and fixed costs of `base` changed so that the predictions come nearest to what was
/// measured; all else is the base's. What nothing was measured of stays, or goes with its like:
/// reading the KV cache with reading weights, attention with matrices. kInvalidArgument without a
/// prefill and a decode, or when a rate leaves the range of the format.
Result<FittedProfile> FitProfile(const DeviceProfile& base, const Measured& measured);

/// As a document of configs/devices; DeviceTable::Parse reads it back.
std::string ProfileYaml(const DeviceProfile& device);

}  // namespace inferd::cost
