// SPDX-License-Identifier: Apache-2.0
#include "cost/device_profile.h"

#include "base/error.h"
#include "base/file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <iterator>
#include <utility>

namespace inferd::cost {
namespace {

constexpr std::uint64_t kMaxFileBytes = 1U << 20U;
constexpr double kMiB = 1024.0 * 1024.0;

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(
      lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

/// A map of the document with its path, for messages. Keys that were asked for are remembered, so
/// that Done() can refuse the others.
class Map {
 public:
  Map(std::string where, YAML::Node node) : where_(std::move(where)), node_(std::move(node)) {}

  const std::string& where() const { return where_; }
  bool Has(const char* key) {
    known_.emplace_back(key);
    return node_[key].IsDefined();
  }
  Result<> Number(const char* key, double min, double max, double scale, double* value) {
    if (!Has(key)) {
      return {};
    }
    const double number = node_[key].as<double>();
    if (!(number >= min && number <= max)) {
      return InvalidArgument(
          "{}: {} is {}; it must be from {} to {}", where_, key, number, min, max);
    }
    *value = number * scale;
    return {};
  }
  Result<> Text(const char* key, std::string* value) {
    if (Has(key)) {
      *value = node_[key].as<std::string>();
    }
    return {};
  }
  Result<> Texts(const char* key, std::vector<std::string>* value) {
    if (Has(key)) {
      *value = node_[key].as<std::vector<std::string>>();
    }
    return {};
  }
  Map Child(const char* key) { return {where_ + "." + key, node_[key]}; }
  YAML::Node Node(const char* key) { return node_[key]; }

  Result<> IsMap() const {
    if (!node_.IsMap()) {
      return InvalidArgument("{} is not a map", where_);
    }
    return {};
  }
  Result<> Done() const {
    for (const auto& pair : node_) {
      const auto key = pair.first.as<std::string>();
      if (std::ranges::find(known_, key) == known_.end()) {
        return InvalidArgument(
            "{}: key {} is not known; {} are", where_, key, fmt::join(known_, ", "));
      }
    }
    return {};
  }

 private:
  std::string where_;
  YAML::Node node_;
  std::vector<std::string> known_;
};

Result<> ParseLink(Map* parent, const char* key, Link* link, int* devices) {
  if (!parent->Has(key)) {
    return {};
  }
  Map map = parent->Child(key);
  INFERD_TRY(map.IsMap());
  INFERD_TRY(map.Text("name", &link->name));
  INFERD_TRY(map.Number("gb_s", 0.001, 1e5, 1e9, &link->bytes_per_s));
  INFERD_TRY(map.Number("latency_us", 0, 1e6, 1e-6, &link->latency_s));
  if (devices != nullptr) {
    double number = *devices;
    INFERD_TRY(map.Number("devices", 1, 1024, 1, &number));
    *devices = static_cast<int>(number);
  }
  if (!(link->bytes_per_s > 0)) {
    return InvalidArgument("{}: gb_s is missing", map.where());
  }
  return map.Done();
}

Result<> ParseEfficiency(Map* parent, Efficiency* efficiency) {
  if (!parent->Has("efficiency")) {
    return InvalidArgument("{}: efficiency is missing", parent->where());
  }
  Map map = parent->Child("efficiency");
  INFERD_TRY(map.IsMap());
  for (const auto& [key, value] : {std::pair{"weights", &efficiency->weights},
                                   std::pair{"kv", &efficiency->kv},
                                   std::pair{"flops", &efficiency->flops},
                                   std::pair{"attention", &efficiency->attention},
                                   std::pair{"link", &efficiency->link}}) {
    INFERD_TRY(map.Number(key, 0.01, 1, 1, value));
  }
  INFERD_TRY(map.Number("step_us", 0, 1e6, 1e-6, &efficiency->step_s));
  INFERD_TRY(map.Number("row_us", 0, 1e5, 1e-6, &efficiency->row_s));
  return map.Done();
}

Result<> ParseMig(Map* parent, std::vector<MigSlice>* slices) {
  if (!parent->Has("mig")) {
    return {};
  }
  for (const auto& node : parent->Node("mig")) {
    Map map(parent->where() + ".mig", node);
    INFERD_TRY(map.IsMap());
    MigSlice slice;
    double number = 1;
    double memory = 0;
    INFERD_TRY(map.Text("name", &slice.name));
    INFERD_TRY(map.Number("per_device", 1, 16, 1, &number));
    INFERD_TRY(map.Number("memory_mib", 1, 1e6, kMiB, &memory));
    INFERD_TRY(map.Number("compute_share", 0.01, 1, 1, &slice.compute_share));
    INFERD_TRY(map.Number("bandwidth_share", 0.01, 1, 1, &slice.bandwidth_share));
    INFERD_TRY(map.Done());
    if (slice.name.empty() || !(memory > 0)) {
      return InvalidArgument("{}: a slice needs name and memory_mib", map.where());
    }
    slice.per_device = static_cast<int>(number);
    slice.memory_bytes = static_cast<std::int64_t>(memory);
    slices->push_back(std::move(slice));
  }
  return {};
}

Result<DeviceProfile> ParseDevice(std::string_view what, const YAML::Node& node) {
  Map map(std::string(what), node);
  INFERD_TRY(map.IsMap());
  DeviceProfile device;
  INFERD_TRY(map.Text("name", &device.name));
  if (device.name.empty()) {
    return InvalidArgument("{}: a device has no name", what);
  }
  map = Map(fmt::format("{}: {}", what, device.name), node);
  INFERD_TRY(map.Text("name", &device.name));
  INFERD_TRY(map.Texts("aliases", &device.aliases));
  std::string kind = "gpu";
  INFERD_TRY(map.Text("kind", &kind));
  if (kind != "gpu" && kind != "cpu") {
    return InvalidArgument("{}: kind is '{}'; gpu and cpu are known", map.where(), kind);
  }
  device.gpu = kind == "gpu";
  double memory = 0;
  double reserved = 0;
  INFERD_TRY(map.Number("memory_mib", 1, 1e8, kMiB, &memory));
  INFERD_TRY(map.Number("reserved_mib", 0, 1e6, kMiB, &reserved));
  device.memory_bytes = static_cast<std::int64_t>(memory);
  device.reserved_bytes = static_cast<std::int64_t>(reserved);
  INFERD_TRY(map.Number("bandwidth_gb_s", 0.1, 1e6, 1e9, &device.bandwidth));
  INFERD_TRY(map.Number("tflops_16bit", 0.001, 1e6, 1e12, &device.flops_16bit));
  INFERD_TRY(map.Number("tflops_8bit", 0, 1e6, 1e12, &device.flops_8bit));
  device.native_4bit = map.Has("native_4bit") && map.Node("native_4bit").as<bool>();
  INFERD_TRY(ParseLink(&map, "peer_link", &device.peer, &device.domain_devices));
  INFERD_TRY(ParseLink(&map, "host_link", &device.host, nullptr));
  INFERD_TRY(ParseLink(&map, "network", &device.network, nullptr));
  INFERD_TRY(map.Number("load_gb_s", 0.001, 1e5, 1e9, &device.load_bytes_per_s));
  INFERD_TRY(ParseEfficiency(&map, &device.efficiency));
  INFERD_TRY(ParseMig(&map, &device.mig));
  INFERD_TRY(map.Number("price_per_hour", 0, 1e6, 1, &device.price_per_hour));
  INFERD_TRY(map.Texts("sources", &device.sources));
  INFERD_TRY(map.Done());
  if (device.memory_bytes <= device.reserved_bytes || !(device.bandwidth > 0) ||
      !(device.flops_16bit > 0)) {
    return InvalidArgument(
        "{}: memory_mib (above reserved_mib), bandwidth_gb_s and tflops_16bit must be given",
        map.where());
  }
  if (device.sources.empty()) {
    return InvalidArgument("{}: sources must say where the figures come from", map.where());
  }
  return device;
}

bool IsCalled(const DeviceProfile& device, const std::string& name) {
  return Lower(device.name) == name || std::ranges::any_of(device.aliases, [&](const auto& alias) {
           return Lower(alias) == name;
         });
}

Result<DeviceProfile> Slice(DeviceProfile device, const std::string& wanted) {
  std::vector<std::string> names;
  for (const MigSlice& slice : device.mig) {
    if (Lower(slice.name) == wanted) {
      DeviceProfile part = device;
      part.name = device.name + ":" + slice.name;
      part.memory_bytes = slice.memory_bytes;
      part.bandwidth *= slice.bandwidth_share;
      part.flops_16bit *= slice.compute_share;
      part.flops_8bit *= slice.compute_share;
      part.load_bytes_per_s /= slice.per_device;
      part.price_per_hour /= slice.per_device;
      part.domain_devices = 1;
      part.peer = {};
      part.host = {};
      part.network = {};
      part.mig = {slice};
      return part;
    }
    names.push_back(slice.name);
  }
  return NotFound("{} has no MIG slice {}; {}",
                  device.name,
                  wanted,
                  names.empty() ? "it has none" : fmt::format("it has {}", fmt::join(names, ", ")));
}

}  // namespace

Result<DeviceTable> DeviceTable::Parse(std::string_view what, const std::string& yaml) {
  DeviceTable table;
  try {
    for (const YAML::Node& document : YAML::LoadAll(yaml)) {
      if (document.IsNull()) {
        continue;
      }
      INFERD_ASSIGN(DeviceProfile device, ParseDevice(what, document));
      table.profiles_.push_back(std::move(device));
    }
  } catch (const YAML::Exception& error) {
    return InvalidArgument("{}: {}", what, error.what());
  }
  return table;
}

Result<DeviceTable> DeviceTable::Load(const std::string& file) {
  DeviceTable table;
  if (!file.empty()) {
    INFERD_ASSIGN(const std::string text, base::ReadFile(file, kMaxFileBytes));
    INFERD_ASSIGN(table, Parse(file, text));
  }
  INFERD_ASSIGN(DeviceTable built_in, Parse("configs/devices", std::string(BuiltInDevices())));
  std::ranges::move(built_in.profiles_, std::back_inserter(table.profiles_));
  return table;
}

Result<DeviceProfile> DeviceTable::Find(std::string_view name) const {
  const std::string lower = Lower(name);
  const std::size_t colon = lower.find(':');
  std::vector<std::string> names;
  for (const DeviceProfile& device : profiles_) {
    if (IsCalled(device, lower)) {
      return device;
    }
    if (colon != std::string::npos && IsCalled(device, lower.substr(0, colon))) {
      return Slice(device, lower.substr(colon + 1));
    }
    names.push_back(device.name);
  }
  return NotFound("no device is called {}; known are {}", name, fmt::join(names, ", "));
}

}  // namespace inferd::cost
