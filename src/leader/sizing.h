// SPDX-License-Identifier: Apache-2.0
// From options and memory to KV pages and the longest sequence. Pure.
#pragma once

#include "inferd/result.h"
#include "spec/memory_ledger.h"
#include "spec/model_spec.h"
#include "spec/parallel.h"

#include <cstdint>
#include <vector>

namespace inferd::leader {

struct SizingInput {
  const spec::ModelSpec* model = nullptr;
  const std::vector<spec::ShardPlan>* shards = nullptr;
  double bytes_per_weight = 2;
  std::vector<std::int64_t> weight_bytes;  // as spec::LedgerOptions::weight_bytes
  double kv_bytes_per_value = 2;
  std::int64_t page_tokens = 32;
  std::int32_t max_num_seqs = 64;
  std::int32_t max_batched_tokens = 512;
  std::int64_t max_model_len = 0;   // 0: fit to the model and the memory
  std::int64_t kv_cache_bytes = 0;  // for one rank
  std::int64_t device_bytes = 0;    // > 0: instead, what the fullest rank leaves of these
};

struct Sizing {
  std::int64_t kv_pages = 0;  // per expert group
  std::int64_t max_model_len = 0;
  spec::MemoryLedger ledger;
};

/// Never more pages than max_num_seqs sequences of full length can use. An explicit max_model_len
/// that does not fit is refused, saying what would; otherwise it is lowered to what the pages hold.
Result<Sizing> SizeKvCache(const SizingInput& input);

}  // namespace inferd::leader
