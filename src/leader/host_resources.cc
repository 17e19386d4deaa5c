// SPDX-License-Identifier: Apache-2.0
#include "leader/host_resources.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace inferd::leader {
namespace {

std::optional<std::int64_t> ParseNumber(std::string_view text) {
  const std::size_t begin = text.find_first_of("0123456789");
  if (begin == std::string_view::npos) {
    return std::nullopt;
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

/// First line of a file in /proc or /sys that starts with `prefix`. Such files have no size, hence
/// not ReadFile.
std::optional<std::string> FindLine(const char* path, std::string_view prefix) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "re"), &std::fclose);
  char line[256];
  while (file != nullptr && std::fgets(line, sizeof line, file.get()) != nullptr) {
    if (std::string_view(line).starts_with(prefix)) {
      return line;
    }
  }
  return std::nullopt;
}

std::optional<std::int64_t> ReadNumber(const char* path, std::string_view prefix) {
  const std::optional<std::string> line = FindLine(path, prefix);
  return line ? ParseNumber(*line) : std::nullopt;  // "max" has no digits: not limited.
}

/// cgroup v2, as seen from inside a container.
std::optional<std::int64_t> CgroupHeadroom() {
  const auto limit = ReadNumber("/sys/fs/cgroup/memory.max", "");
  const auto used = ReadNumber("/sys/fs/cgroup/memory.current", "");
  if (!limit || !used) {
    return std::nullopt;
  }
  return std::max<std::int64_t>(0, *limit - *used);
}

}  // namespace

std::vector<int> AllowedCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) {
        cpus.push_back(cpu);
      }
    }
  }
  return cpus;
}

std::int64_t AvailableMemoryBytes() {
  std::int64_t available = ReadNumber("/proc/meminfo", "MemAvailable:").value_or(0) * 1024;
  if (const auto headroom = CgroupHeadroom()) {
    available = std::min(available, *headroom);
  }
  return available;
}

}  // namespace inferd::leader
