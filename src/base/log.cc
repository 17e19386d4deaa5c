// SPDX-License-Identifier: Apache-2.0
// The only file that includes spdlog. Also holds CheckFailed, which must log before it dies.
#include "base/log.h"

#include "base/check.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <string>

namespace inferd::log {
namespace {

spdlog::logger& Logger() {
  static spdlog::logger logger("inferd", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  return logger;
}

spdlog::level::level_enum Convert(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void Init(Level level, std::string_view process_name) {
  Logger().set_level(Convert(level));
  Logger().flush_on(spdlog::level::debug);
  Logger().set_pattern(std::string("%Y-%m-%dT%H:%M:%S.%e %^%L%$ ") + std::string(process_name) +
                       " %v");
}

bool Enabled(Level level) { return Logger().should_log(Convert(level)); }

void Write(Level level, std::string_view room, std::string_view message) {
  Logger().log(Convert(level), "[{}] {}", room, message);
}

}  // namespace inferd::log

namespace inferd::base {

void CheckFailed(std::string_view condition, std::string_view message, std::source_location place) {
  log::Write(
      log::Level::kError,
      "check",
      fmt::format(
          "{}:{}: check failed: {} {}", place.file_name(), place.line(), condition, message));
  std::abort();
}

}  // namespace inferd::base
