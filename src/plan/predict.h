// SPDX-License-Identifier: Apache-2.0
// What one replica gives under a steady load, on paper: time to first token, time per token, and
// the highest rate within targets. Pure; formulas in docs/planning.md.
#pragma once

#include "cost/cost_model.h"

#include <cstdint>
#include <vector>

namespace inferd::plan {

/// One replica as the cost model sees it. Expert groups are alike; sizes are per group.
struct ReplicaModel {
  std::vector<cost::StageCost> stages;
  cost::DeviceProfile device;
  cost::ReplicaLinks links;
  int groups = 1;
  std::int64_t kv_tokens = 0;  // of one group
  std::int64_t max_num_seqs = 256;
  std::int64_t max_batched_tokens = 2048;
};

/// Requests alike: prompt and output tokens.
struct Lengths {
  double input = 1000;
  double output = 300;
};

struct Targets {
  double ttft_s = 0;  // 0: none
  double itl_s = 0;
};

struct Prediction {
  bool stable = false;  // the load can be served for ever
  double running = 0;   // sequences at once, of the replica
  double ttft_s = 0;
  double tpot_s = 0;
  double step_s = 0;          // of the slowest stage
  double busy = 0;            // share of the devices' time that prompts take
  double tokens_per_s = 0;    // output, of the replica
  cost::StepTime bottleneck;  // of the slowest stage
};

/// Of an idle replica: one request.
Prediction PredictAlone(const ReplicaModel& replica, const Lengths& lengths);
/// Under `rate` requests per second to this replica. Not stable: the queue would grow, or the KV
/// cache or the rows are too few for what runs at once; the times are those of the limit then.
Prediction Predict(const ReplicaModel& replica, const Lengths& lengths, double rate);
/// The highest rate that is stable and within the targets; 0: even a single request is not.
double MaxRate(const ReplicaModel& replica, const Lengths& lengths, const Targets& targets);
/// All rows busy, requests always waiting (offline): output tokens per second.
Prediction PredictOffline(const ReplicaModel& replica, const Lengths& lengths);

}  // namespace inferd::plan
