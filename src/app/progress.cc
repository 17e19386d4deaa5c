// SPDX-License-Identifier: Apache-2.0
#include "app/progress.h"

#include "base/clock.h"
#include "base/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace inferd::app {
namespace {

constexpr int kBarWidth = 30;
constexpr std::int64_t kDrawEveryMs = 100;
constexpr std::int64_t kLogEveryMs = 5'000;

std::string Bytes(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= 1LL << 30) {
    return fmt::format("{:.2f} GiB", value / (1LL << 30));
  }
  return fmt::format("{:.1f} MiB", value / (1LL << 20));
}

std::string Amount(std::int64_t amount, ProgressUnit unit) {
  return unit == ProgressUnit::kBytes ? Bytes(amount) : std::to_string(amount);
}

}  // namespace

std::string ProgressLine(const std::string& what,
                         std::int64_t done,
                         std::int64_t total,
                         ProgressUnit unit) {
  if (total <= 0) {
    return fmt::format("{} {}", what, Amount(done, unit));
  }
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const auto filled = static_cast<std::size_t>(share * kBarWidth);
  return fmt::format("{} [{}{}] {:3.0f}%  {} of {}",
                     what,
                     std::string(filled, '#'),
                     std::string(kBarWidth - filled, ' '),
                     share * 100,
                     Amount(done, unit),
                     Amount(total, unit));
}

ProgressBar::ProgressBar(std::string what, ProgressUnit unit)
    : what_(std::move(what)), unit_(unit), terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (drawn_) {
    std::fputc('\n', stderr);
  }
}

void ProgressBar::Update(std::int64_t done, std::int64_t total) {
  const std::int64_t now_ms = base::SteadyClock::Get().NowMs();
  const bool finished = total > 0 && done >= total && done != last_done_;
  if (!finished && last_ms_ != 0 && now_ms - last_ms_ < (terminal_ ? kDrawEveryMs : kLogEveryMs)) {
    return;
  }
  if ((done == last_done_ || done == 0) && !terminal_) {
    return;
  }
  last_ms_ = now_ms;
  last_done_ = done;
  const std::string line = ProgressLine(what_, done, total, unit_);
  if (terminal_) {
    std::fputs(("\r\x1b[K" + line).c_str(), stderr);
    std::fflush(stderr);
    drawn_ = true;
  } else {
    log::Info("app", "{}", line);
  }
}

}  // namespace inferd::app
