// SPDX-License-Identifier: Apache-2.0
// DeviceProfile: what the cost model knows about a kind of device, as data. Built in from
// configs/devices; a file of the same form can stand before them.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::cost {

/// A connection of one device to its peers.
struct Link {
  std::string name;
  double bytes_per_s = 0;  // one way
  double latency_s = 0;    // of one hop of a small message, software included
};

/// A slice of a device that is a device of its own: no peer access, so only replicas of one rank.
struct MigSlice {
  std::string name;  // "1g.10gb"
  int per_device = 1;
  std::int64_t memory_bytes = 0;
  double compute_share = 1;
  double bandwidth_share = 1;
};

/// Shares of the peaks that real engines reach, one per phase, and what a step costs beside them.
struct Efficiency {
  double weights = 0.6;    // of the memory bandwidth, reading weights for few tokens
  double kv = 0.8;         // of the memory bandwidth, reading KV
  double flops = 0.5;      // of the FLOPs, multiplying matrices for many tokens
  double attention = 0.5;  // of the FLOPs, attention of a prompt
  double link = 0.7;       // of a link's bandwidth
  double step_s = 0;       // fixed cost of a step
  double row_s = 0;        // cost of a running sequence in a step
};

struct DeviceProfile {
  std::string name;
  std::vector<std::string> aliases;
  bool gpu = true;
  std::int64_t memory_bytes = 0;    // of the device as its driver reports it
  std::int64_t reserved_bytes = 0;  // driver, context and libraries
  double bandwidth = 0;             // bytes per second
  double flops_16bit = 0;           // dense, BF16 or FP16
  double flops_8bit = 0;            // FP8 (GPUs) or int8 (CPUs); 0: 8-bit weights are widened
  bool native_4bit = false;         // 4-bit weights are multiplied at flops_8bit
  Link peer;                        // to devices of the same domain
  int domain_devices = 1;           // that share `peer`; 1: peers are reached over `host`
  Link host;                        // to other devices of the same host without `peer`
  Link network;                     // to other hosts, per device
  double load_bytes_per_s = 0;      // host memory to device
  Efficiency efficiency;
  std::vector<MigSlice> mig;
  double price_per_hour = 0;  // of one device; 0: not known
  std::vector<std::string> sources;
};

class DeviceTable {
 public:
  /// The built-in profiles; those of `file` (may be empty) stand before them.
  static Result<DeviceTable> Load(const std::string& file);
  /// One YAML document per device. `what` names the text in messages. Unknown keys, absent ones and
  /// values out of range are errors that name the device and the key.
  static Result<DeviceTable> Parse(std::string_view what, const std::string& yaml);

  /// By name or alias, without regard to case; "A100-80G:1g.10gb" is a MIG slice. kNotFound lists
  /// the names.
  Result<DeviceProfile> Find(std::string_view name) const;
  const std::vector<DeviceProfile>& profiles() const { return profiles_; }

 private:
  std::vector<DeviceProfile> profiles_;
};

/// Text of configs/devices/*.yaml at build time, one document each.
std::string_view BuiltInDevices();

}  // namespace inferd::cost
