// SPDX-License-Identifier: Apache-2.0
#include "app/file_watch.h"

#include "base/check.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <chrono>
#include <exception>
#include <utility>

namespace inferd::app {
namespace {

/// What changes when a file does. Links are followed, so a switched link counts too.
std::string StateOf(const std::vector<std::string>& paths) {
  std::string state;
  for (const std::string& path : paths) {
    struct stat info {};
    if (stat(path.c_str(), &info) != 0) {
      state += "absent;";
      continue;
    }
    state += fmt::format("{}:{}:{}:{}.{};",
                         info.st_dev,
                         info.st_ino,
                         info.st_size,
                         info.st_mtim.tv_sec,
                         info.st_mtim.tv_nsec);
  }
  return state;
}

}  // namespace

FileWatch::FileWatch(std::vector<std::string> paths,
                     std::function<void()> on_change,
                     int interval_ms)
    : paths_(std::move(paths)),
      on_change_(std::move(on_change)),
      interval_ms_(interval_ms),
      seen_(StateOf(paths_)),
      thread_([this](const std::stop_token& stop) {
        try {
          Work(stop);
        } catch (const std::exception& error) {  // only an exhausted heap gets here
          base::CheckFailed("file watch thread", error.what());
        }
      }) {}

FileWatch::~FileWatch() = default;

void FileWatch::Work(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex_);
      ended_.wait_for(lock, stop, std::chrono::milliseconds(interval_ms_), [] { return false; });
    }
    std::string state = StateOf(paths_);
    if (!stop.stop_requested() && state != seen_) {
      seen_ = std::move(state);
      on_change_();
    }
  }
}

}  // namespace inferd::app
