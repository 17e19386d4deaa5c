// SPDX-License-Identifier: Apache-2.0
// The real engine (router and schedulers) in virtual time: replicas whose steps take what the cost
// model says. For capacity questions that formulas do not answer.
#pragma once

#include "inferd/result.h"
#include "plan/predict.h"
#include "plan/trace.h"

#include <cstdint>
#include <vector>

namespace inferd::plan {

/// When replicas are started and stopped.
struct AutoscalePolicy {
  int min_replicas = 0;       // 0: no autoscaling, all replicas run
  double up_waiting = 4;      // waiting sequences per running replica that ask for one more
  double down_delay_s = 300;  // without waiting ones, before a replica is stopped
  double down_running = 0.3;  // share of rows in use below which one is too many
  double period_s = 1;        // between looks
};

struct SimulateOptions {
  ReplicaModel replica;
  int replicas = 1;                  // most that run at once, 1 to 64
  std::vector<int> node_of_replica;  // [replicas]; empty: each on a node of its own
  std::int64_t max_waiting = 1024;   // of a replica; beyond: refused
  bool prefix_cache = true;
  std::int64_t page_tokens = 32;
  Targets targets;
  double rate_scale = 1;          // arrivals come this many times as fast as the trace says
  std::int64_t max_requests = 0;  // of the trace's beginning; 0: all
  double cold_start_s = 60;       // from the wish to a replica that serves
  double lose_node_at_s = -1;     // this node is lost then; < 0: never
  int lost_node = 0;
  int spares = 0;          // of `replicas`, started only when a node is lost
  bool prewarmed = false;  // spares have loaded and serve after a second
  AutoscalePolicy autoscale;
};

struct Percentiles {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};

struct SimulateResult {
  std::int64_t requests = 0;
  std::int64_t completed = 0;
  std::int64_t refused = 0;  // queue full, or nothing that serves
  std::int64_t retried = 0;  // ran on a lost node and began again elsewhere
  double duration_s = 0;     // virtual, until the last request has ended
  double rate = 0;           // requests per second that came
  double tokens_per_s = 0;   // output, while requests came
  Percentiles ttft_s, tpot_s, latency_s;
  double attained = 0;       // share of the requests that met both targets; refused ones did not
  double replica_hours = 0;  // started, serving or ending
  std::int64_t preemptions = 0;
  std::int64_t steps = 0;
  double mean_rows = 0;   // of a step
  double prefix_hit = 0;  // share of prompt tokens that came from the prefix cache
  double wall_s = 0;      // what the simulation took
};

/// Deterministic. kInvalidArgument for options that cannot be.
Result<SimulateResult> Simulate(const SimulateOptions& options,
                                const std::vector<TraceRequest>& trace);

struct Knee {
  double rate = 0;    // the highest at which `share` of the requests meet the targets
  SimulateResult at;  // there
  std::vector<std::pair<double, double>> tried;  // rate, share attained; by rate
};

/// Scales the arrivals of the trace's first `requests` requests until the share that meets the
/// targets falls below `share`.
Result<Knee> FindKnee(const SimulateOptions& options,
                      const std::vector<TraceRequest>& trace,
                      double share,
                      std::int64_t requests);

}  // namespace inferd::plan
