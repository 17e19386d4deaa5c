// SPDX-License-Identifier: Apache-2.0
#include "spec/memory_ledger.h"

#include "base/error.h"
#include "spec/stage_balance.h"
#include "spec/weight_classes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace inferd::spec {
namespace {

constexpr std::int64_t kValueBytes = 4;  // activations are floats

/// Rows of logits that a rank holds at a time, as model::Shard does.
std::int64_t LogitRows(const LedgerOptions& options) {
  constexpr std::int64_t kMost = 64;
  return std::min(options.max_num_seqs, kMost);
}

// Q, K, V and the output of attention of a token; with a latent also the query and the output in
// the latent space, and the query's own latent.
std::int64_t AttentionValues(const ModelSpec& model, const ShardPlan& shard) {
  const std::int64_t heads = shard.q_heads.size();
  if (!model.latent.used()) {
    return 2 * (heads + shard.kv_heads.size()) * model.head_dim;
  }
  const LatentSpec& latent = model.latent;
  return latent.width() + latent.q_rank +
         heads * (model.head_dim + latent.width() + latent.kv_rank + latent.value_dim);
}

// What model::Shard allocates for the largest step: residual stream and its norm, the slice of the
// hidden state that tensor-parallel peers gather, q k v and attention output, gate and up of the
// widest FFN, what MoE layers keep beside, logits; and the tables of the rotary embedding.
std::int64_t ActivationBytes(const ModelSpec& model,
                             const ShardPlan& shard,
                             const LedgerOptions& options) {
  const std::int64_t hidden = model.hidden_size;
  std::int64_t per_token = 2 * hidden + AttentionValues(model, shard) +
                           2 * std::max(shard.ffn.size(), shard.shared_ffn.size());
  per_token += shard.tp > 1 ? HiddenRows(model, shard).size() : 0;
  per_token += model.moe.num_experts > 0 ? 2 * hidden + 1 + model.moe.num_experts : 0;
  std::int64_t values = options.max_batched_tokens * per_token;
  values += shard.has_head ? LogitRows(options) * (hidden + shard.vocab.size()) : 0;
  // The sampler gathers whole rows of logits from its peers.
  values += shard.is_sampler() && shard.tp > 1 ? LogitRows(options) * model.vocab_size : 0;
  for (const RopeSpec& rope : model.ropes) {
    values += rope.kind == RopeKind::kNone ? 0 : options.max_model_len * rope.rotary_dim;
  }
  return values * kValueBytes;
}

// Send and receive buffers of the gathers of a tp group, and of the exchange of rows between expert
// groups.
std::int64_t CollectiveBytes(const ModelSpec& model,
                             const ShardPlan& shard,
                             const LedgerOptions& options) {
  constexpr std::int64_t kGatherSlack = 4096;
  const std::int64_t tokens = options.max_batched_tokens;
  std::int64_t bytes = 0;
  if (shard.tp > 1) {
    const std::int64_t widest =
        std::max({model.num_heads * model.value_dim(), model.intermediate_size, model.hidden_size});
    const std::int64_t logits = shard.has_head ? LogitRows(options) * model.vocab_size : 0;
    bytes += 2 * (std::max(tokens * widest, logits) + kGatherSlack) * kValueBytes;
  }
  if (shard.ep > 1) {
    const std::int64_t routed = 2 * kValueBytes * model.moe.top_k;  // expert and weight
    const std::int64_t row = model.hidden_size * kValueBytes;
    bytes += shard.ep * tokens * (2 * (row + routed) + 2 * row + routed);
  }
  return bytes;
}

Result<> FillKv(const LedgerOptions& options, RankLedger* rank) {
  const std::int64_t fixed = rank->weight_bytes + rank->activation_bytes + rank->collective_bytes;
  const std::int64_t page_bytes = rank->kv_bytes_per_token * options.page_tokens;
  const std::int64_t least = page_bytes * options.max_num_seqs;
  if (options.budget_bytes - fixed < least) {
    const std::int64_t fitting = page_bytes > 0 ? (options.budget_bytes - fixed) / page_bytes : 0;
    const std::string advice =
        fitting >= 1
            ? fmt::format(
                  "use --max-num-seqs of at most {}, or give {} bytes", fitting, fixed + least)
            : fmt::format("give at least {} bytes, more ranks (--tp, --pp) or smaller weights",
                          fixed + least);
    return ResourceExhausted(
        "rank {} may use {} bytes, but needs {} for weights, {} for activations and collectives "
        "and {} for one KV page "
        "of each of {} sequences: {}",
        rank->rank,
        options.budget_bytes,
        rank->weight_bytes,
        rank->activation_bytes + rank->collective_bytes,
        least,
        options.max_num_seqs,
        advice);
  }
  rank->kv_pages = page_bytes > 0 ? (options.budget_bytes - fixed) / page_bytes : 0;
  rank->kv_bytes = rank->kv_pages * page_bytes;
  return {};
}

std::string Bytes(std::int64_t bytes) {
  constexpr double kMiB = 1024.0 * 1024.0;
  const auto value = static_cast<double>(bytes);
  return value >= 1024 * kMiB ? fmt::format("{:.2f} GiB", value / (1024 * kMiB))
                              : fmt::format("{:.1f} MiB", value / kMiB);
}

}  // namespace

std::int64_t CountLayerParameters(const ModelSpec& model, std::int64_t layer) {
  return LayerWeights(model, layer).total();
}

std::int64_t CountParameters(const ModelSpec& model) {
  const std::int64_t table = model.vocab_size * model.hidden_size;
  std::int64_t count = table * (model.tied_head ? 1 : 2) + model.hidden_size;
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    count += CountLayerParameters(model, layer);
  }
  return count;
}

std::int64_t CountParameters(const ModelSpec& model, const ShardPlan& shard) {
  return ShardWeights(model, shard).total();
}

double BytesPerWeight(const ModelSpec& model, std::int64_t weight_bytes) {
  const std::int64_t parameters = CountParameters(model);
  return parameters > 0 ? static_cast<double>(weight_bytes) / static_cast<double>(parameters) : 2;
}

std::int64_t KvValuesPerToken(const ModelSpec& model) {
  return model.num_layers * model.KvValues(model.num_kv_heads);
}

Result<MemoryLedger> MakeLedger(const ModelSpec& model,
                                const std::vector<ShardPlan>& shards,
                                const LedgerOptions& options) {
  if (options.page_tokens < 1 || options.max_batched_tokens < 1 || options.max_num_seqs < 1 ||
      !(options.kv_bytes_per_value > 0) || !(options.bytes_per_weight > 0)) {
    return InvalidArgument(
        "page of {} tokens, {} tokens a step, {} sequences, {} bytes a KV value, {} a weight: all "
        "must "
        "be above 0",
        options.page_tokens,
        options.max_batched_tokens,
        options.max_num_seqs,
        options.kv_bytes_per_value,
        options.bytes_per_weight);
  }
  if (!options.weight_bytes.empty() && options.weight_bytes.size() != shards.size()) {
    return InvalidArgument(
        "weights of {} ranks are given for {} ranks", options.weight_bytes.size(), shards.size());
  }
  MemoryLedger ledger;
  ledger.parameters = CountParameters(model);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const ShardPlan& shard = shards[i];
    RankLedger rank;
    rank.rank = shard.rank;
    rank.weight_bytes = options.weight_bytes.empty()
                            ? std::llround(static_cast<double>(CountParameters(model, shard)) *
                                           options.bytes_per_weight)
                            : options.weight_bytes[i];
    rank.activation_bytes = ActivationBytes(model, shard, options);
    rank.collective_bytes = CollectiveBytes(model, shard, options);
    const std::int64_t values = shard.layers.size() * model.KvValues(shard.kv_heads.size());
    rank.kv_bytes_per_token =
        std::llround(static_cast<double>(values) * options.kv_bytes_per_value);
    if (options.budget_bytes > 0) {
      INFERD_TRY(FillKv(options, &rank));
    }
    ledger.kv_pages = i == 0 ? rank.kv_pages : std::min(ledger.kv_pages, rank.kv_pages);
    ledger.ranks.push_back(rank);
  }
  ledger.kv_tokens = ledger.kv_pages * options.page_tokens;
  return ledger;
}

std::string Describe(const MemoryLedger& ledger) {
  std::string text = fmt::format("{:.2f} billion parameters; KV cache for {} tokens ({} pages)\n",
                                 static_cast<double>(ledger.parameters) / 1e9,
                                 ledger.kv_tokens,
                                 ledger.kv_pages);
  text += fmt::format("{:>4} {:>12} {:>12} {:>12} {:>12} {:>14}\n",
                      "rank",
                      "weights",
                      "activations",
                      "collectives",
                      "KV cache",
                      "KV per token");
  for (const RankLedger& rank : ledger.ranks) {
    text += fmt::format("{:>4} {:>12} {:>12} {:>12} {:>12} {:>10} KiB\n",
                        rank.rank,
                        Bytes(rank.weight_bytes),
                        Bytes(rank.activation_bytes),
                        Bytes(rank.collective_bytes),
                        Bytes(rank.kv_bytes),
                        fmt::format("{:.1f}", static_cast<double>(rank.kv_bytes_per_token) / 1024));
  }
  return text;
}

}  // namespace inferd::spec
