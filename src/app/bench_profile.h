// SPDX-License-Identifier: Apache-2.0
// `inferd bench --write-profile FILE`: the measured device as a profile that `inferd plan` takes.
#pragma once

#include "cost/device_profile.h"
#include "cost/fit_profile.h"
#include "inferd/config.h"
#include "inferd/result.h"
#include "leader/leader.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::app {

/// What is known before anything is measured: the profile to begin with, and what one step costs.
struct ProfilePlan {
  std::string file;
  cost::DeviceProfile base;
  cost::Measured measured;  // without observations
};

/// The profile whose name, or an alias, has the GPU's model as its first word ("H100" of "NVIDIA
/// H100 80GB HBM3"), of the nearest memory, which it then has. kNotFound: there is none.
Result<cost::DeviceProfile> ProfileLike(std::string_view gpu_name,
                                        std::int64_t memory_bytes,
                                        const cost::DeviceTable& table);

/// kInvalidArgument for more than one rank; kNotFound for a GPU that no built-in profile is like.
Result<ProfilePlan> PlanProfile(const std::string& file,
                                const Config& config,
                                const leader::LeaderOptions& options);

/// Fits and writes it. The text says how near the predictions come, for the report.
Result<std::string> WriteProfile(const ProfilePlan& plan,
                                 std::vector<cost::Observation> observations);

}  // namespace inferd::app
