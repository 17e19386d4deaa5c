// SPDX-License-Identifier: Apache-2.0
#include "spec/device_choice.h"

#include "base/error.h"

#include <algorithm>
#include <charconv>

namespace inferd::spec {
namespace {

constexpr int kMaxIndex = 1023;

bool IsIndex(std::string_view text, int* index) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *index);
  return error == std::errc() && at == end && *index >= 0 && *index <= kMaxIndex;
}

bool IsUuid(std::string_view text) {
  const auto rest = text.substr(std::min<std::size_t>(text.size(), 4));
  return (text.starts_with("GPU-") || text.starts_with("MIG-")) && !rest.empty() &&
         std::all_of(rest.begin(), rest.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') ||
                  c == '-';
         });
}

}  // namespace

Result<DeviceChoice> ParseDevice(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  DeviceChoice choice;
  if (text == "cpu") {
    return choice;
  }
  if (kind == "sim") {
    choice.kind = DeviceKind::kSim;
    choice.sim = text;
    return choice;
  }
  if (kind == "cuda-emu") {
    choice.kind = DeviceKind::kCudaEmu;
    if (colon != std::string_view::npos &&
        (!IsIndex(rest, &choice.emulated) || choice.emulated == 0)) {
      return InvalidArgument(
          "--device is '{}'; after cuda-emu: comes the number of emulated devices, 1 to {}",
          text,
          kMaxIndex);
    }
    return choice;
  }
  if (kind != "cuda" || text.ends_with(':')) {
    return InvalidArgument(
        "--device is '{}'; it must be cpu, cuda, cuda:0,1, cuda:GPU-<uuid>, cuda:MIG-<uuid>, "
        "cuda-emu or sim:PROFILE",
        text);
  }
  choice.kind = DeviceKind::kCuda;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    int index = 0;
    if (!IsIndex(name, &index) && !IsUuid(name)) {
      return InvalidArgument(
          "--device is '{}'; '{}' is neither an index (0 to {}) nor a GPU-<uuid> or MIG-<uuid>, as "
          "`nvidia-smi -L` prints them",
          text,
          name,
          kMaxIndex);
    }
    choice.names.emplace_back(name);
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
  }
  return choice;
}

Result<> CheckDevices(const DeviceChoice& choice, const ParallelSpec& parallel) {
  for (std::size_t i = 0; i < choice.names.size(); ++i) {
    const std::string& name = choice.names[i];
    if (name.starts_with("MIG-") && parallel.ranks_per_replica() > 1) {
      return InvalidArgument(
          "{} is a MIG slice, and slices have no peer access: NCCL cannot join them to a group. "
          "Serve a whole model on each with --dp, or use whole GPUs for --tp {} --pp {} --ep {}",
          name,
          parallel.tp,
          parallel.pp,
          parallel.ep);
    }
    if (std::find(choice.names.begin(),
                  choice.names.begin() + static_cast<std::ptrdiff_t>(i),
                  name) != choice.names.begin() + static_cast<std::ptrdiff_t>(i)) {
      return InvalidArgument("--device names {} twice; a rank needs a device of its own", name);
    }
  }
  return {};
}

Result<std::string> DeviceOfRank(const DeviceChoice& choice, int local) {
  const auto index = static_cast<std::size_t>(local);
  switch (choice.kind) {
    case DeviceKind::kCpu:
      return std::string("cpu");
    case DeviceKind::kSim:
      return choice.sim;
    case DeviceKind::kCudaEmu:
      if (choice.emulated > 0 && local >= choice.emulated) {
        return InvalidArgument(
            "--device cuda-emu:{} emulates {} devices per host, but rank {} of the host needs one "
            "too",
            choice.emulated,
            choice.emulated,
            local);
      }
      return fmt::format("cuda-emu:{}", local);
    case DeviceKind::kCuda:
      break;
  }
  if (choice.names.empty()) {
    return fmt::format("cuda:{}", local);
  }
  if (index >= choice.names.size()) {
    return InvalidArgument("--device names {} devices, but rank {} of the host needs one too",
                           choice.names.size(),
                           local);
  }
  return "cuda:" + choice.names[index];
}

}  // namespace inferd::spec
