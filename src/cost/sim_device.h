// SPDX-License-Identifier: Apache-2.0
// The text of `--device sim:PROFILE[@SLOWER][/MODEL]`: serve as if on such devices, and as if that
// were the model.
#pragma once

#include "cost/device_profile.h"
#include "inferd/result.h"

#include <string>
#include <string_view>

namespace inferd::cost {

struct SimDevice {
  DeviceProfile profile;
  std::string model;  // a shape's name or path; empty: the served model itself
  double slower = 1;  // a step takes so many times what it would: for more devices than this
                      // machine can follow at their own speed
};

bool IsSimDevice(std::string_view device);
/// kNotFound names the profiles; kInvalidArgument for a SLOWER that is no number from 1 to 10000.
Result<SimDevice> ParseSimDevice(std::string_view device);

}  // namespace inferd::cost
