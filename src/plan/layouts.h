// SPDX-License-Identifier: Apache-2.0
// From a model, a cluster and a workload to the layouts that fit, best first: what `inferd plan
// --gpus` prints. Pure.
#pragma once

#include "cost/cost_model.h"
#include "inferd/result.h"
#include "plan/predict.h"
#include "spec/memory_ledger.h"
#include "spec/parallel.h"
#include "spec/weight_classes.h"

#include <cstdint>
#include <string>
#include <vector>

namespace inferd::plan {

struct ClusterSpec {
  cost::DeviceProfile device;
  int nodes = 1;
  int per_node = 1;  // devices of a node
  /// Sizes of a node's domains of fast links, in order of its devices; empty: as the profile says.
  std::vector<int> domains;

  int devices() const { return nodes * per_node; }
};

struct LayoutRequest {
  spec::ModelSpec model;
  spec::CutGranularity cut;
  double bytes_per_weight = 2;
  double kv_bytes_per_value = 2;
  ClusterSpec cluster;
  int tp = 0, pp = 0, ep = 0;  // 0: any
  bool expert_parallel_in_tp = false;
  bool allow_cross_host_tp = false;
  double memory_utilization = 0.9;  // share of a device's memory that may be used
  std::int64_t max_num_seqs = 256;
  std::int64_t max_batched_tokens = 2048;
  std::int64_t max_model_len = 0;  // a sequence of this length must fit; 0: prompt and output
  int redundancy = 0;              // replicas kept in reserve
  Lengths lengths;
  double rate = 0;  // requests per second to the whole cluster; 0: only the limits are told
  Targets targets;
};

/// What one rank holds.
struct RankMemory {
  spec::RankLedger ledger;
  spec::WeightClasses parameters;  // times bytes_per_weight: bytes by class
  double headroom = 0;             // share of the device left for KV after all else
};

struct RankPlace {
  int node = 0;
  int device = 0;  // of the node
};

struct Layout {
  spec::ParallelSpec parallel;  // of one replica
  int replicas = 0;             // that serve
  int reserve = 0;              // kept in reserve
  int unused_devices = 0;
  std::vector<RankMemory> ranks;  // of one replica
  std::int64_t kv_tokens = 0;     // of one replica
  double most_running = 0;        // sequences of the workload's lengths that a replica can hold
  cost::ReplicaLinks links;
  ReplicaModel model;
  std::vector<RankPlace> places;  // [replicas + reserve][ranks]
  double max_rate = 0;            // requests per second of all serving replicas, within targets
  Prediction alone;               // one request on an idle replica
  Prediction at_limit;            // a replica at max_rate / replicas
  Prediction at_rate;             // a replica at rate / replicas; if a rate is given
  bool meets = false;             // targets, at the given rate (or at any)
  double tokens_per_s = 0;        // output of all serving replicas at max_rate
  double cost_per_million = 0;    // output tokens at max_rate, all devices paid; 0: no price
  int replicas_needed = 0;        // for the rate within the targets; 0: no rate, or never
};

struct LayoutPlan {
  std::vector<Layout> layouts;        // best first
  std::vector<std::string> rejected;  // a sentence each
};

/// kResourceExhausted: nothing fits; the message says what would.
Result<LayoutPlan> PlanLayouts(const LayoutRequest& request);

/// Domains of a node: those given, or the profile's.
std::vector<int> NodeDomains(const ClusterSpec& cluster);

}  // namespace inferd::plan
