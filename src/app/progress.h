// SPDX-License-Identifier: Apache-2.0
// Progress of something long: a bar that is redrawn on a terminal, a log line now and then
// otherwise.
#pragma once

#include <cstdint>
#include <string>

namespace inferd::app {

/// What is counted.
enum class ProgressUnit { kBytes, kRequests };

/// The bar's line, without "\r": "loading [#####     ]  50%  1.2 of 2.4 GiB".
std::string ProgressLine(const std::string& what,
                         std::int64_t done,
                         std::int64_t total,
                         ProgressUnit unit = ProgressUnit::kBytes);

/// Single-threaded; writes to standard error.
class ProgressBar {
 public:
  explicit ProgressBar(std::string what, ProgressUnit unit = ProgressUnit::kBytes);
  /// Ends the line if one was drawn.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Call as often as you like.
  void Update(std::int64_t done, std::int64_t total);
  void Rename(std::string what) { what_ = std::move(what); }

 private:
  std::string what_;
  const ProgressUnit unit_;
  bool terminal_;
  bool drawn_ = false;
  std::int64_t last_ms_ = 0;
  std::int64_t last_done_ = -1;
};

}  // namespace inferd::app
