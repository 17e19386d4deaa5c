// SPDX-License-Identifier: Apache-2.0
// Looks at files now and then and tells when one has changed: key files, certificates.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace inferd::app {

/// Owns a thread, on which `on_change` is called after any of the files was written, replaced or
/// removed. Several changes within one look make one call.
class FileWatch {
 public:
  FileWatch(std::vector<std::string> paths,
            std::function<void()> on_change,
            int interval_ms = 1000);
  ~FileWatch();
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

 private:
  void Work(const std::stop_token& stop);

  const std::vector<std::string> paths_;
  const std::function<void()> on_change_;
  const int interval_ms_;
  std::string seen_;
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::jthread thread_;  // last: it uses the rest
};

}  // namespace inferd::app
