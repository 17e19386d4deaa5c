// SPDX-License-Identifier: Apache-2.0
// The emulation's settings, read once from the environment (engine.h and runtime_api.h list them).
#pragma once

#include <cstddef>
#include <cstdint>

namespace inferd::simt {

enum class Order : std::uint8_t { kForward, kReverse, kRandom };

struct Settings {
  Order order = Order::kForward;
  std::uint64_t seed = 1;
  bool copies_early = false;
  bool lazy_streams = false;
  bool ipc = true;
  int threads = 1;
  int devices = 1;
  std::size_t device_bytes = 0;
};

const Settings& GetSettings();

}  // namespace inferd::simt
