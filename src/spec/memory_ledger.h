// SPDX-License-Identifier: Apache-2.0
// MemoryLedger: bytes per rank, computed from the spec and not profiled. Printed at start, served
// as JSON and metrics.
#pragma once

#include "base/dtype.h"
#include "inferd/result.h"
#include "spec/model_spec.h"
#include "spec/parallel.h"

#include <cstdint>
#include <string>
#include <vector>

namespace inferd::spec {

struct LedgerOptions {
  /// Bytes per weight where weight_bytes does not say (16-bit: 2).
  double bytes_per_weight = 2;
  /// Bytes of each shard's weights, in the order of the shards, when they are known; empty:
  /// counted.
  std::vector<std::int64_t> weight_bytes;
  double kv_bytes_per_value = 2;  // as KvBytesPerValue
  std::int64_t page_tokens = 32;
  std::int64_t max_batched_tokens = 512;
  std::int64_t max_num_seqs = 64;
  /// Positions of the rotary embedding's tables; 0: not counted.
  std::int64_t max_model_len = 0;
  /// Memory a rank may use in all; 0: not bounded.
  std::int64_t budget_bytes = 0;
};

struct RankLedger {
  int rank = 0;
  std::int64_t weight_bytes = 0;
  std::int64_t activation_bytes = 0;
  std::int64_t collective_bytes = 0;
  std::int64_t kv_bytes_per_token = 0;
  std::int64_t kv_bytes = 0;  // what is left of the budget, whole pages
  std::int64_t kv_pages = 0;
};

struct MemoryLedger {
  std::vector<RankLedger> ranks;
  std::int64_t kv_pages = 0;    // smallest over the ranks
  std::int64_t kv_tokens = 0;   // kv_pages * page_tokens
  std::int64_t parameters = 0;  // of the whole model
};

/// Parameters of the whole model (tied head counted once).
std::int64_t CountParameters(const ModelSpec& model);
/// Stored bytes per parameter of a model whose tensors take weight_bytes in all; 2 when it has no
/// parameters.
double BytesPerWeight(const ModelSpec& model, std::int64_t weight_bytes);
/// Parameters one shard holds.
std::int64_t CountParameters(const ModelSpec& model, const ShardPlan& shard);
/// KV values (K and V, all layers) per token of the whole model; times the KV type's size = bytes.
std::int64_t KvValuesPerToken(const ModelSpec& model);

/// Refuses a budget too small for the weights plus one page per sequence, saying what would fit.
Result<MemoryLedger> MakeLedger(const ModelSpec& model,
                                const std::vector<ShardPlan>& shards,
                                const LedgerOptions& options);

/// A table for people.
std::string Describe(const MemoryLedger& ledger);

}  // namespace inferd::spec
