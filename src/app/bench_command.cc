// SPDX-License-Identifier: Apache-2.0
// `inferd bench MODEL`: prefill and decode speed of the engine with all its ranks.
#include "app/bench_profile.h"
#include "app/commands.h"
#include "app/engine_timer.h"
#include "app/signals.h"
#include "base/error.h"
#include "base/log.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace inferd::app {
namespace {

constexpr std::int64_t kStallDeadlineMs = 600'000;
constexpr std::int64_t kWarmUpTokens = 32;

/// One line of the report; `streams` 0 is a prefill.
struct Measurement {
  std::int64_t streams = 0;
  std::int64_t context = 0;
  std::vector<EngineTiming> rounds = {};
};

double Median(const std::vector<EngineTiming>& rounds, double EngineTiming::*value) {
  std::vector<double> values;
  std::transform(rounds.begin(),
                 rounds.end(),
                 std::back_inserter(values),
                 [value](const EngineTiming& timing) { return timing.*value; });
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::int64_t MaxChunk(const CommandLine& line) {
  return line.config.scheduler.max_num_batched_tokens;
}

std::vector<Measurement> Measurements(const BenchOptions& options) {
  std::vector<Measurement> all;
  for (const std::int64_t tokens : options.prompt_tokens) {
    all.push_back({.streams = 0, .context = tokens});
  }
  for (const std::int64_t context : options.context) {
    for (const std::int64_t streams : options.streams) {
      all.push_back({.streams = streams, .context = context});
    }
  }
  return all;
}

std::string Name(const Measurement& measurement) {
  return measurement.streams == 0
             ? fmt::format("prefill {}", measurement.context)
             : fmt::format("decode {} x, context {}", measurement.streams, measurement.context);
}

void PrintJson(const Measurement& measurement, std::int64_t round, const EngineTiming& timing) {
  const bool decode = measurement.streams > 0;
  std::printf(
      "{\"phase\": \"%s\", \"round\": %lld, \"streams\": %lld, \"context\": %lld, "
      "\"seconds\": %.6f, \"tokens_per_s\": %.3f",
      decode ? "decode" : "prefill",
      static_cast<long long>(round),
      static_cast<long long>(std::max<std::int64_t>(measurement.streams, 1)),
      static_cast<long long>(measurement.context),
      timing.seconds,
      timing.tokens_per_s);
  if (decode) {
    std::printf(", \"gap_p50_ms\": %.3f, \"gap_p95_ms\": %.3f, \"gap_max_ms\": %.3f",
                timing.gap_p50_ms,
                timing.gap_p95_ms,
                timing.gap_max_ms);
  }
  std::printf("}\n");
  std::fflush(stdout);
}

void PrintTable(const std::vector<Measurement>& measurements) {
  std::printf("%-32s %12s %12s %12s %12s\n", "", "tokens/s", "gap p50 ms", "p95 ms", "max ms");
  for (const Measurement& measurement : measurements) {
    std::printf("%-32s %12.1f",
                Name(measurement).c_str(),
                Median(measurement.rounds, &EngineTiming::tokens_per_s));
    if (measurement.streams > 0) {
      std::printf(" %12.2f %12.2f %12.2f",
                  Median(measurement.rounds, &EngineTiming::gap_p50_ms),
                  Median(measurement.rounds, &EngineTiming::gap_p95_ms),
                  Median(measurement.rounds, &EngineTiming::gap_max_ms));
    }
    std::printf("\n");
  }
}

/// Before anything is measured: what cannot fit would fail after minutes.
Result<> CheckLengths(const CommandLine& line, std::int64_t max_model_len) {
  for (const Measurement& measurement : Measurements(line.bench)) {
    const std::int64_t needed =
        measurement.streams == 0
            ? measurement.context + 1
            : measurement.context + EngineTimer::DecodeTokens(measurement.streams,
                                                              measurement.context,
                                                              line.bench.output_tokens,
                                                              MaxChunk(line));
    if (needed > max_model_len) {
      return InvalidArgument(
          "{} needs a context of {} tokens and this one is {}; measure less, or give a larger "
          "--max-model-len if the model was trained for it",
          Name(measurement),
          needed,
          max_model_len);
    }
  }
  return {};
}

/// Rounds outside, measurements inside: a disturbance of some seconds then spoils one round of a
/// few of them instead of all rounds of one.
Result<std::vector<Measurement>> MeasureAll(const CommandLine& line,
                                            std::int64_t max_model_len,
                                            EngineTimer& timer) {
  INFERD_TRY(CheckLengths(line, max_model_len));
  INFERD_TRY(timer.Prefill(kWarmUpTokens));
  std::vector<Measurement> all = Measurements(line.bench);
  for (std::int64_t round = 0; round < line.bench.rounds; ++round) {
    for (Measurement& measurement : all) {
      auto timing = measurement.streams == 0 ? timer.Prefill(measurement.context)
                                             : timer.Decode(measurement.streams,
                                                            measurement.context,
                                                            line.bench.output_tokens,
                                                            MaxChunk(line));
      INFERD_TRY(std::as_const(timing));
      measurement.rounds.push_back(*timing);
      if (line.json) {
        PrintJson(measurement, round, *timing);
      } else {
        log::Info("app",
                  "round {}: {}: {:.1f} tokens/s",
                  round + 1,
                  Name(measurement),
                  timing->tokens_per_s);
      }
    }
  }
  return all;
}

/// Medians; the context of a decode grows while it is measured.
std::vector<cost::Observation> Observations(const std::vector<Measurement>& measurements,
                                            std::int64_t output_tokens) {
  std::vector<cost::Observation> all;
  for (const Measurement& one : measurements) {
    const bool is_prefill = one.streams == 0;
    // Each stream gets a token a step.
    const double seconds = is_prefill ? Median(one.rounds, &EngineTiming::seconds)
                                      : Median(one.rounds, &EngineTiming::gap_p50_ms) * 1e-3;
    all.push_back(
        {one.streams, is_prefill ? one.context : one.context + output_tokens / 2, seconds});
  }
  return all;
}

}  // namespace

Result<> Bench(const CommandLine& line) {
  Config config = line.config;
  config.scheduler.enable_prefix_caching = false;
  const BenchOptions& bench = line.bench;
  config.scheduler.max_num_seqs = std::max(
      config.scheduler.max_num_seqs, *std::max_element(bench.streams.begin(), bench.streams.end()));
  INFERD_ASSIGN(const store::Model model, FindModel(config.model, config.worker.device));
  INFERD_ASSIGN(leader::LeaderOptions options, MakeLeaderOptions(config, model));
  std::optional<ProfilePlan> profile;
  if (!bench.write_profile.empty()) {
    INFERD_ASSIGN(profile, PlanProfile(bench.write_profile, config, options));
  }
  INFERD_ASSIGN(const auto leader, leader::Leader::Start(std::move(options)));
  // Generations that a measurement gives up speak to the timer until the leader has stopped.
  EngineTimer timer(leader.get(), kStallDeadlineMs, [] { return StopRequested(); });
  Result<> ready = WaitUntilReady(leader.get());
  auto measured = ready.ok() ? MeasureAll(line, leader->max_model_len(), timer)
                             : Result<std::vector<Measurement>>(ready.error());
  leader->BeginDrain();
  leader->Stop();
  if (!measured.ok()) {
    return measured.error();
  }
  if (!line.json) {
    PrintTable(*measured);
  }
  if (profile) {
    INFERD_ASSIGN(const std::string said,
                  WriteProfile(*profile, Observations(*measured, bench.output_tokens)));
    log::Info("app", "{}", said);
  }
  return {};
}

}  // namespace inferd::app
