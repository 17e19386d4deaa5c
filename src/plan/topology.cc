// SPDX-License-Identifier: Apache-2.0
#include "plan/topology.h"

#include "base/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

namespace inferd::plan {
namespace {

constexpr std::size_t kMaxDevices = 1024;
constexpr std::size_t kMaxTextBytes = 4U << 20U;
constexpr int kMaxCpu = 65'536;
constexpr int kMaxLanes = 64;

std::optional<int> Number(std::string_view text, int max) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool ok = error == std::errc() && end == text.data() + text.size() && value >= 0;
  return ok && value <= max ? std::optional(value) : std::nullopt;
}

std::optional<Path> ParsePath(std::string_view word) {
  static const std::map<std::string_view, PathKind> kNames = {{"X", PathKind::kSelf},
                                                              {"NV", PathKind::kNvlink},
                                                              {"PIX", PathKind::kPix},
                                                              {"PXB", PathKind::kPxb},
                                                              {"PHB", PathKind::kPhb},
                                                              {"NODE", PathKind::kNode},
                                                              {"SYS", PathKind::kSys}};
  if (const auto found = kNames.find(word); found != kNames.end()) {
    return Path{found->second, 0};
  }
  if (word.starts_with("NV")) {
    if (const auto lanes = Number(word.substr(2), kMaxLanes); lanes && *lanes > 0) {
      return Path{PathKind::kNvlink, *lanes};
    }
  }
  return std::nullopt;
}

std::string Shown(std::string_view word) {
  constexpr std::size_t kMostShown = 40;
  std::string shown;
  for (const char c : word.substr(0, kMostShown)) {
    shown +=
        static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7f ? c : '?';
  }
  return shown;
}

/// Underlining of headers, as nvidia-smi writes to terminals.
std::string WithoutEscapes(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b' && i + 1 < text.size() && text[i + 1] == '[') {
      while (i < text.size() && text[i] != 'm') {
        ++i;
      }
      continue;
    }
    plain += text[i];
  }
  return plain;
}

std::vector<std::string_view> Words(std::string_view line) {
  std::vector<std::string_view> words;
  constexpr std::string_view kBlank = " \t\r";
  while (true) {
    const std::size_t begin = line.find_first_not_of(kBlank);
    if (begin == std::string_view::npos) {
      return words;
    }
    const std::size_t end = std::min(line.find_first_of(kBlank, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    line = line.substr(end);
  }
}

bool IsDeviceName(std::string_view word) {
  for (const std::string_view prefix : {"GPU", "NIC", "mlx5_", "mlx4_", "hfi1_", "bnxt_re"}) {
    if (word.starts_with(prefix) && Number(word.substr(prefix.size()), 1 << 20)) {
      return true;
    }
  }
  return false;
}

/// "0-3,8": at most kMaxCpu numbers.
std::optional<std::vector<int>> CpuList(std::string_view text) {
  std::vector<int> cpus;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    const std::size_t dash = part.find('-');
    const auto first = Number(part.substr(0, dash), kMaxCpu);
    const auto last =
        dash == std::string_view::npos ? first : Number(part.substr(dash + 1), kMaxCpu);
    if (!first || !last || *last < *first) {
      return std::nullopt;
    }
    for (int cpu = *first; cpu <= *last; ++cpu) {
      cpus.push_back(cpu);
    }
    if (cpus.size() > static_cast<std::size_t>(kMaxCpu)) {
      return std::nullopt;
    }
    text = text.substr(std::min(comma + 1, text.size()));
  }
  return cpus;
}

Result<> ReadHeader(std::string_view what,
                    const std::vector<std::string_view>& words,
                    Topology* topology) {
  for (const std::string_view word : words) {
    if (!IsDeviceName(word)) {
      break;  // "CPU Affinity", "NUMA Affinity", ...
    }
    for (const TopologyDevice& known : topology->devices) {
      if (known.name == word) {
        return InvalidArgument("{}: device {} stands twice in the header", what, word);
      }
    }
    TopologyDevice device;
    device.name = std::string(word);
    device.compute = word.starts_with("GPU");
    topology->devices.push_back(std::move(device));
    if (topology->devices.size() > kMaxDevices) {
      return InvalidArgument("{}: more than {} devices", what, kMaxDevices);
    }
  }
  return {};
}

Result<> ReadRow(std::string_view where,
                 const std::vector<std::string_view>& words,
                 std::size_t row,
                 Topology* topology) {
  const std::size_t count = topology->devices.size();
  TopologyDevice& device = topology->devices[row];
  if (words.front() != device.name) {
    return InvalidArgument(
        "{}: the row is of {}, but {} comes next", where, Shown(words.front()), device.name);
  }
  if (words.size() < count + 1) {
    return InvalidArgument(
        "{}: {} has {} of {} links", where, device.name, words.size() - 1, count);
  }
  std::vector<Path> paths;
  for (std::size_t i = 0; i < count; ++i) {
    const auto path = ParsePath(words[i + 1]);
    if (!path) {
      return InvalidArgument(
          "{}: '{}' is not a link; X, NV1 to NV{}, PIX, PXB, PHB, NODE and SYS are",
          where,
          Shown(words[i + 1]),
          kMaxLanes);
    }
    if ((path->kind == PathKind::kSelf) != (i == row)) {
      return InvalidArgument("{}: X stands for a device itself, not for {} and {}",
                             where,
                             device.name,
                             topology->devices[i].name);
    }
    paths.push_back(*path);
  }
  if (words.size() > count + 1 && device.compute && words[count + 1] != "N/A") {
    const auto cpus = CpuList(words[count + 1]);
    if (!cpus) {
      return InvalidArgument("{}: '{}' is not a list of CPUs", where, Shown(words[count + 1]));
    }
    device.cpus = *cpus;
  }
  if (words.size() > count + 2 && device.compute) {
    device.numa_node = Number(words[count + 2], kMaxCpu).value_or(-1);
  }
  topology->paths.push_back(std::move(paths));
  return {};
}

Result<> CheckSymmetric(std::string_view what, const Topology& topology) {
  for (std::size_t i = 0; i < topology.paths.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Path& a = topology.paths[i][j];
      const Path& b = topology.paths[j][i];
      if (a.kind != b.kind || a.lanes != b.lanes) {
        return InvalidArgument("{}: {} to {} is {}, but back it is {}",
                               what,
                               topology.devices[i].name,
                               topology.devices[j].name,
                               PathName(a),
                               PathName(b));
      }
    }
  }
  return {};
}

}  // namespace

std::string PathName(const Path& path) {
  switch (path.kind) {
    case PathKind::kSelf:
      return "X";
    case PathKind::kNvlink:
      return path.lanes > 0 ? fmt::format("NV{}", path.lanes) : "NV";
    case PathKind::kCache:
      return "L3";
    case PathKind::kPix:
      return "PIX";
    case PathKind::kPxb:
      return "PXB";
    case PathKind::kPhb:
      return "PHB";
    case PathKind::kNode:
      return "NODE";
    case PathKind::kSys:
      return "SYS";
  }
  return "?";
}

void FindDomains(Topology* topology) {
  topology->domains.clear();
  const std::size_t count = topology->devices.size();
  bool any_nvlink = false;
  for (const auto& row : topology->paths) {
    any_nvlink = any_nvlink || std::ranges::any_of(row, [](const Path& path) {
                   return path.kind == PathKind::kNvlink;
                 });
  }
  std::vector<bool> dealt(count, false);
  for (std::size_t i = 0; i < count; ++i) {
    if (dealt[i] || !topology->devices[i].compute) {
      continue;
    }
    // A domain is a clique: every member reaches every other one.
    std::vector<int> domain;
    for (std::size_t j = i; j < count; ++j) {
      const bool joined = std::ranges::all_of(domain, [&](int member) {
        const Path& path = topology->paths[static_cast<std::size_t>(member)][j];
        return any_nvlink ? path.kind == PathKind::kNvlink : path.kind != PathKind::kSys;
      });
      if (!dealt[j] && topology->devices[j].compute && joined) {
        dealt[j] = true;
        domain.push_back(static_cast<int>(j));
      }
    }
    topology->domains.push_back(std::move(domain));
  }
}

Result<Topology> ParseNvidiaTopology(std::string_view what, std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return InvalidArgument("{}: {} bytes are too many for a topology", what, text.size());
  }
  const std::string plain = WithoutEscapes(text);
  Topology topology;
  std::string_view rest = plain;
  int number = 0;
  while (!rest.empty() &&
         (topology.devices.empty() || topology.paths.size() < topology.devices.size())) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::vector<std::string_view> words = Words(rest.substr(0, end));
    rest = rest.substr(std::min(end + 1, rest.size()));
    ++number;
    if (words.empty()) {
      continue;
    }
    if (topology.devices.empty()) {
      INFERD_TRY(ReadHeader(what, words, &topology));
      if (topology.devices.empty()) {
        return InvalidArgument(
            "{}: line {} begins with '{}'; the output of `nvidia-smi topo -m` begins with its "
            "devices, GPU0 and so on",
            what,
            number,
            Shown(words.front()));
      }
      continue;
    }
    INFERD_TRY(
        ReadRow(fmt::format("{}: line {}", what, number), words, topology.paths.size(), &topology));
  }
  if (topology.devices.empty()) {
    return InvalidArgument("{}: there is no device in it", what);
  }
  if (topology.paths.size() != topology.devices.size()) {
    return InvalidArgument(
        "{}: the row of {} is missing", what, topology.devices[topology.paths.size()].name);
  }
  INFERD_TRY(CheckSymmetric(what, topology));
  FindDomains(&topology);
  return topology;
}

std::string DescribeTopology(const Topology& topology) {
  std::string text = fmt::format("{:<8}", "");
  for (const TopologyDevice& device : topology.devices) {
    text += fmt::format(" {:>7}", device.name);
  }
  text += "   NUMA\n";
  for (std::size_t i = 0; i < topology.devices.size(); ++i) {
    text += fmt::format("{:<8}", topology.devices[i].name);
    for (const Path& path : topology.paths[i]) {
      text += fmt::format(" {:>7}", PathName(path));
    }
    const int node = topology.devices[i].numa_node;
    text += fmt::format("   {}\n", node < 0 ? "-" : std::to_string(node));
  }
  std::size_t largest = 0;
  for (std::size_t i = 0; i < topology.domains.size(); ++i) {
    std::vector<std::string> names;
    for (const int member : topology.domains[i]) {
      names.push_back(topology.devices[static_cast<std::size_t>(member)].name);
    }
    largest = std::max(largest, names.size());
    text += fmt::format("domain {}: {}\n", i, fmt::join(names, " "));
  }
  text += fmt::format("a tensor-parallel group stays in one domain: --tp of at most {} here\n",
                      largest);
  return text;
}

std::string TopologyJson(const Topology& topology) {
  nlohmann::ordered_json json;
  json["devices"] = nlohmann::ordered_json::array();
  for (const TopologyDevice& device : topology.devices) {
    json["devices"].push_back({{"name", device.name},
                               {"kind", device.compute ? "compute" : "network"},
                               {"cpus", device.cpus},
                               {"numa_node", device.numa_node}});
  }
  json["links"] = nlohmann::ordered_json::array();
  for (const auto& row : topology.paths) {
    std::vector<std::string> names;
    std::ranges::transform(row, std::back_inserter(names), PathName);
    json["links"].push_back(names);
  }
  json["domains"] = topology.domains;
  return json.dump(2) + "\n";
}

}  // namespace inferd::plan
