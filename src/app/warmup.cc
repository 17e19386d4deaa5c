// SPDX-License-Identifier: Apache-2.0
#include "app/warmup.h"

#include "api/batch/batch_input.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

#include <chrono>
#include <cstddef>
#include <utility>

namespace inferd::app {
namespace {

constexpr std::uint64_t kMaxFileBytes = 16 << 20;
constexpr std::size_t kMaxRunning = 8;
constexpr std::chrono::milliseconds kWait{100};

}  // namespace

// ---- WarmingService

Result<> WarmingService::Submit(leader::GenerateRequest request, leader::Refusal* refusal) {
  return service_->Submit(std::move(request), refusal);
}

void WarmingService::Cancel(leader::StreamId stream, std::int32_t choice) {
  service_->Cancel(stream, choice);
}

leader::Phase WarmingService::phase() const {
  const leader::Phase phase = service_->phase();
  return phase == leader::Phase::kReady && !warm_.load() ? leader::Phase::kLoading : phase;
}

// ---- the requests

Result<WarmupRequests> ReadWarmupFile(const std::string& path) {
  WarmupRequests requests;
  if (path.empty()) {
    return requests;
  }
  INFERD_ASSIGN(const std::string text, base::ReadFile(path, kMaxFileBytes));
  const api::BatchInput input = api::ReadBatchInput(text, "", {});
  if (!input.errors.empty()) {
    const api::BatchError& first = input.errors.front();
    return InvalidArgument("--warmup-file {}, line {}: {}", path, first.line, first.message);
  }
  for (const api::BatchLine& line : input.lines) {
    requests.lines.push_back(
        {line.custom_id, line.url, api::BodyOf(std::string_view(text).substr(line.at, line.size))});
  }
  return requests;
}

Warmup::Warmup(std::shared_ptr<const api::ServedModel> model, leader::InferenceService* service)
    : runner_(std::move(model), service, &metrics_, nullptr, kMaxRunning) {}

void Warmup::Run(const WarmupRequests& requests,
                 std::int64_t timeout_s,
                 const std::function<bool()>& give_up) {
  const base::Clock& clock = base::SteadyClock::Get();
  const std::int64_t began_ms = clock.NowMs();
  std::size_t next = 0;
  std::size_t done = 0;
  std::size_t failed = 0;
  const auto in_time = [&] { return clock.NowMs() - began_ms < timeout_s * 1000 && !give_up(); };
  while (done < requests.lines.size() && in_time()) {
    while (next < requests.lines.size() && runner_.HasRoom()) {
      const WarmupRequests::Line& line = requests.lines[next++];
      runner_.Start({.tag = next, .url = line.url, .body = line.body, .owner = "-"});
    }
    if (const auto answer = runner_.Take(kWait)) {
      ++done;
      if (answer->kind != api::LineAnswer::Kind::kAnswered || !api::IsGoodStatus(answer->status)) {
        ++failed;
        log::Warning("app",
                     "warm-up request {}: {}",
                     requests.lines[answer->tag - 1].id,
                     answer->body.substr(0, 300));
      }
    }
  }
  runner_.Stop();
  log::Info("app",
            "warm-up: {} of {} requests in {} ms, {} failed",
            done,
            requests.lines.size(),
            clock.NowMs() - began_ms,
            failed);
}

}  // namespace inferd::app
