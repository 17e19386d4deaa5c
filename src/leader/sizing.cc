// SPDX-License-Identifier: Apache-2.0
#include "leader/sizing.h"

#include "base/error.h"

#include <algorithm>

namespace inferd::leader {

Result<Sizing> SizeKvCache(const SizingInput& input) {
  spec::LedgerOptions options;
  options.bytes_per_weight = input.bytes_per_weight;
  options.weight_bytes = input.weight_bytes;
  options.kv_bytes_per_value = input.kv_bytes_per_value;
  options.page_tokens = input.page_tokens;
  options.max_batched_tokens = input.max_batched_tokens;
  options.max_num_seqs = input.max_num_seqs;
  const std::int64_t trained = input.model->max_position > 0 ? input.model->max_position : 4096;
  const std::int64_t wanted = input.max_model_len > 0 ? input.max_model_len : trained;
  options.max_model_len = wanted;
  INFERD_ASSIGN(spec::MemoryLedger ledger, spec::MakeLedger(*input.model, *input.shards, options));
  std::int64_t page_bytes = 1;
  for (const spec::RankLedger& rank : ledger.ranks) {
    page_bytes = std::max(page_bytes, rank.kv_bytes_per_token * input.page_tokens);
  }
  const std::int64_t pages_per_sequence = (wanted + input.page_tokens - 1) / input.page_tokens;
  std::int64_t kv_cache_bytes = input.kv_cache_bytes;
  if (input.device_bytes > 0) {
    std::int64_t fullest = 0;
    for (const spec::RankLedger& rank : ledger.ranks) {
      fullest =
          std::max(fullest, rank.weight_bytes + rank.activation_bytes + rank.collective_bytes);
    }
    kv_cache_bytes = std::max<std::int64_t>(0, input.device_bytes - fullest);
  }
  const std::int64_t affordable = kv_cache_bytes / page_bytes;
  Sizing sizing;
  sizing.kv_pages = std::min(affordable, pages_per_sequence * input.max_num_seqs);
  if (sizing.kv_pages < 1) {
    return ResourceExhausted(
        "the KV cache may take {} bytes per rank, but one page of {} tokens needs {}; give it more "
        "with --kv-cache-bytes",
        kv_cache_bytes,
        input.page_tokens,
        page_bytes);
  }
  sizing.max_model_len = std::min(wanted, sizing.kv_pages * input.page_tokens);
  if (input.max_model_len > sizing.max_model_len) {
    return ResourceExhausted(
        "--max-model-len {} needs {} bytes of KV cache per rank and there are {}; use at most {}, "
        "or "
        "more with --kv-cache-bytes",
        input.max_model_len,
        pages_per_sequence * page_bytes,
        kv_cache_bytes,
        sizing.max_model_len);
  }
  for (spec::RankLedger& rank : ledger.ranks) {
    rank.kv_pages = sizing.kv_pages;
    rank.kv_bytes = sizing.kv_pages * input.page_tokens * rank.kv_bytes_per_token;
  }
  ledger.kv_pages = sizing.kv_pages;
  ledger.kv_tokens = sizing.kv_pages * input.page_tokens;
  sizing.ledger = std::move(ledger);
  return sizing;
}

}  // namespace inferd::leader
