// SPDX-License-Identifier: Apache-2.0
// Structured one-line logging to stderr. `log::Info("leader", "replica {} ready", 0)`; the tag is
// the room's name. Thread-safe. No prompt text and no key ever goes into a log line.
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace inferd::log {

enum class Level { kDebug, kInfo, kWarning, kError };

/// Sets the smallest level that is written (default kInfo). `process_name` is printed with each
/// line ("leader", "worker 3"); call once at start-up, before other threads exist.
void Init(Level level, std::string_view process_name);

bool Enabled(Level level);
void Write(Level level, std::string_view room, std::string_view message);

#define INFERD_DEFINE_LOG(Name, level)                                                   \
  template <class... Args>                                                               \
  void Name(std::string_view room, fmt::format_string<Args...> format, Args&&... args) { \
    if (Enabled(level)) {                                                                \
      Write(level, room, fmt::format(format, std::forward<Args>(args)...));              \
    }                                                                                    \
  }

INFERD_DEFINE_LOG(Debug, Level::kDebug)
INFERD_DEFINE_LOG(Info, Level::kInfo)
INFERD_DEFINE_LOG(Warning, Level::kWarning)
// Not named Error: that is the value type.
INFERD_DEFINE_LOG(Failure, Level::kError)

#undef INFERD_DEFINE_LOG

}  // namespace inferd::log
