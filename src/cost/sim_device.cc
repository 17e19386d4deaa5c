// SPDX-License-Identifier: Apache-2.0
#include "cost/sim_device.h"

#include "base/error.h"

#include <charconv>
#include <system_error>

namespace inferd::cost {
namespace {

constexpr std::string_view kPrefix = "sim:";
constexpr double kSlowest = 10'000;

}  // namespace

bool IsSimDevice(std::string_view device) { return device == "sim" || device.starts_with(kPrefix); }

Result<SimDevice> ParseSimDevice(std::string_view device) {
  if (!device.starts_with(kPrefix)) {
    return InvalidArgument("--device {} names no profile; for example sim:H100", device);
  }
  const std::string_view rest = device.substr(kPrefix.size());
  const std::size_t slash = rest.find('/');
  const std::string_view name = rest.substr(0, slash);
  const std::size_t at = name.find('@');
  SimDevice sim;
  INFERD_ASSIGN(const DeviceTable table, DeviceTable::Load(""));
  INFERD_ASSIGN(sim.profile, table.Find(name.substr(0, at)));
  if (at != std::string_view::npos) {
    const std::string_view text = name.substr(at + 1);
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, sim.slower);
    if (error != std::errc() || stop != end || !(sim.slower >= 1 && sim.slower <= kSlowest)) {
      return InvalidArgument(
          "--device {}: after '@' comes how many times slower, from 1 to {}", device, kSlowest);
    }
  }
  sim.model = slash == std::string_view::npos ? "" : rest.substr(slash + 1);
  return sim;
}

}  // namespace inferd::cost
