// SPDX-License-Identifier: Apache-2.0
#include "kernels/simt/settings.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

namespace inferd::simt {
namespace {

std::string_view Read(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

long ReadNumber(const char* name, long low, long high, long otherwise) {
  const std::string text(Read(name));
  return text.empty() ? otherwise : std::clamp(std::strtol(text.c_str(), nullptr, 10), low, high);
}

Settings ReadSettings() {
  Settings settings;
  const std::string_view order = Read("EMU_ORDER");
  if (order.starts_with("rev")) {
    settings.order = Order::kReverse;
  } else if (order.starts_with("rand")) {
    settings.order = Order::kRandom;
    const auto colon = order.find(':');
    if (colon != std::string_view::npos) {
      settings.seed = std::strtoull(std::string(order.substr(colon + 1)).c_str(), nullptr, 10);
    }
  }
  settings.copies_early = Read("EMU_CPASYNC") == "early";
  settings.lazy_streams = Read("EMU_STREAMS") == "lazy";
  settings.ipc = Read("EMU_IPC") != "0";
  const auto cores = static_cast<long>(std::max(1U, std::thread::hardware_concurrency()));
  settings.threads = static_cast<int>(ReadNumber("EMU_THREADS", 1, 64, std::min(cores, 16L)));
#if defined(__SANITIZE_THREAD__)
  settings.threads = 1;  // Blocks share scratch memory in ways the detector would not understand.
#endif
  settings.devices = static_cast<int>(ReadNumber("EMU_DEVICES", 0, 64, 1));
  settings.device_bytes = static_cast<std::size_t>(ReadNumber("EMU_MEMORY_MB", 1, 1 << 20, 2048))
                          << 20;
  return settings;
}

}  // namespace

const Settings& GetSettings() {
  static const Settings settings = ReadSettings();
  return settings;
}

}  // namespace inferd::simt
