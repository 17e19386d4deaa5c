// SPDX-License-Identifier: Apache-2.0
// Whether this host has the devices that --device asks for, before anything is started.
#include "app/commands.h"
#include "base/error.h"
#include "ops/device.h"
#include "spec/device_choice.h"

#include <charconv>

namespace inferd::app {

Result<> CheckDeviceIsThere(const Config& config) {
  INFERD_ASSIGN(const spec::DeviceChoice choice, spec::ParseDevice(config.worker.device));
  if (choice.kind != spec::DeviceKind::kCuda) {
    return {};
  }
  INFERD_ASSIGN(const std::vector<std::int64_t> devices, ops::CudaDeviceBytes());
  const auto count = static_cast<std::int64_t>(devices.size());
  for (const std::string& name : choice.names) {
    std::int64_t index = 0;
    const char* const end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data(), end, index);
    if (error == std::errc() && at == end && index >= count) {
      return NotFound("no CUDA device {}: this host has {}, numbered from 0", index, count);
    }
  }
  const std::int64_t ranks = config.parallel.tp * config.parallel.pp * config.parallel.ep *
                             config.parallel.dp / config.cluster.nnodes;
  if (choice.names.empty() && ranks > count) {
    return NotFound(
        "{} ranks need a CUDA device each, and this host has {}: use fewer with --tp, "
        "--pp, --ep or --dp",
        ranks,
        count);
  }
  return {};
}

}  // namespace inferd::app
