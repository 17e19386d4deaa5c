// SPDX-License-Identifier: Apache-2.0
#include "cost/sim_device.h"

#include "base/error.h"

namespace inferd::cost {
namespace {

constexpr std::string_view kPrefix = "sim:";

}  // namespace

bool IsSimDevice(std::string_view device) { return device == "sim" || device.starts_with(kPrefix); }

Result<SimDevice> ParseSimDevice(std::string_view device) {
  if (!device.starts_with(kPrefix)) {
    return InvalidArgument("--device {} names no profile; for example sim:H100", device);
  }
  const std::string_view rest = device.substr(kPrefix.size());
  const std::size_t slash = rest.find('/');
  SimDevice sim;
  INFERD_ASSIGN(const DeviceTable table, DeviceTable::Load(""));
  INFERD_ASSIGN(sim.profile, table.Find(rest.substr(0, slash)));
  sim.model = slash == std::string_view::npos ? "" : rest.substr(slash + 1);
  return sim;
}

}  // namespace inferd::cost
