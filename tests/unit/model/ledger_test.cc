// SPDX-License-Identifier: Apache-2.0
// What the memory ledger predicts against what ranks on CPUs really hold.
#include "model/rank.h"
#include "spec/memory_ledger.h"
#include "spec/weight_classes.h"
#include "store/model.h"
#include "unit/store/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace inferd::model {
namespace {

constexpr int kLayers = 4;

/// A folder with a model of some 20 million zero weights in BF16; with experts if asked.
void WriteModel(const store::TempDir& folder, bool moe) {
  std::vector<std::pair<std::string, std::vector<int>>> tensors = {
      {"model.embed_tokens.weight", {4096, 512}},
      {"lm_head.weight", {4096, 512}},
      {"model.norm.weight", {512}}};
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    tensors.push_back({at + "input_layernorm.weight", {512}});
    tensors.push_back({at + "post_attention_layernorm.weight", {512}});
    tensors.push_back({at + "self_attn.q_proj.weight", {512, 512}});
    tensors.push_back({at + "self_attn.k_proj.weight", {256, 512}});
    tensors.push_back({at + "self_attn.v_proj.weight", {256, 512}});
    tensors.push_back({at + "self_attn.o_proj.weight", {512, 512}});
    if (!moe) {
      tensors.push_back({at + "mlp.gate_proj.weight", {1536, 512}});
      tensors.push_back({at + "mlp.up_proj.weight", {1536, 512}});
      tensors.push_back({at + "mlp.down_proj.weight", {512, 1536}});
      continue;
    }
    tensors.push_back({at + "block_sparse_moe.gate.weight", {4, 512}});
    for (int expert = 0; expert < 4; ++expert) {
      const std::string of = fmt::format("{}block_sparse_moe.experts.{}.", at, expert);
      tensors.push_back({of + "w1.weight", {1024, 512}});
      tensors.push_back({of + "w3.weight", {1024, 512}});
      tensors.push_back({of + "w2.weight", {512, 1024}});
    }
  }
  std::string header = "{";
  std::uint64_t offset = 0;
  for (const auto& [name, shape] : tensors) {
    std::uint64_t bytes = 2;
    std::string sizes;
    for (const int size : shape) {
      bytes *= static_cast<std::uint64_t>(size);
      sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
    }
    header += fmt::format(R"({}"{}":{{"dtype":"BF16","shape":[{}],"data_offsets":[{},{}]}})",
                          offset == 0 ? "" : ",",
                          name,
                          sizes,
                          offset,
                          offset + bytes);
    offset += bytes;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  folder.Write("model.safetensors",
               store::Bytes<std::uint64_t>(header.size()) + header + std::string(offset, '\0'));
  folder.Write("config.json",
               fmt::format(R"({{"architectures":["{}"],"vocab_size":4096,"hidden_size":512,
"intermediate_size":{},"num_hidden_layers":{},"num_attention_heads":8,"num_key_value_heads":4,
"max_position_embeddings":4096,"torch_dtype":"bfloat16"{}}})",
                           moe ? "MixtralForCausalLM" : "LlamaForCausalLM",
                           moe ? 1024 : 1536,
                           kLayers,
                           moe ? R"(,"num_local_experts":4,"num_experts_per_tok":2)" : ""));
  folder.Write("tokenizer.json", "{}");
}

struct Case {
  bool moe;
  spec::ParallelSpec parallel;
  spec::KvDtype kv_dtype = spec::KvDtype::kAuto;
};

class Ledger : public testing::TestWithParam<Case> {};

TEST_P(Ledger, IsWithinOnePercentOfWhatRanksHold) {
  const store::TempDir folder;
  WriteModel(folder, GetParam().moe);
  const auto model = store::OpenModel(folder.path());
  ASSERT_TRUE(model.ok()) << model.error().message();
  const auto shards = spec::PlanShards(model->spec, GetParam().parallel, model->cut);
  ASSERT_TRUE(shards.ok()) << shards.error().message();
  spec::LedgerOptions options;
  options.max_batched_tokens = 256;
  options.max_num_seqs = 16;
  options.max_model_len = 1024;
  options.kv_bytes_per_value = spec::KvBytesPerValue(GetParam().kv_dtype, model->spec);
  const auto ledger = spec::MakeLedger(model->spec, *shards, options);
  ASSERT_TRUE(ledger.ok());
  constexpr std::int64_t kPages = 64;
  for (const spec::ShardPlan& shard : *shards) {
    spec::LoadRequest request;
    request.model_path = folder.path();
    request.shard = shard;
    request.max_num_seqs = 16;
    request.max_batched_tokens = 256;
    request.max_model_len = 1024;
    request.kv_pages = kPages;
    request.kv_dtype = GetParam().kv_dtype;
    const auto rank = Rank::Load(request, {});
    ASSERT_TRUE(rank.ok()) << rank.error().message();
    const RankMemory real = (*rank)->memory();
    const spec::RankLedger& planned = ledger->ranks[static_cast<std::size_t>(shard.rank)];
    // The embedding is read in its mapping; it is planned for, but not allocated.
    const std::int64_t mapped = 2 * spec::ShardWeights(model->spec, shard).embedding;
    const auto predicted =
        static_cast<double>(planned.weight_bytes - mapped + planned.activation_bytes +
                            planned.collective_bytes + kPages * 32 * planned.kv_bytes_per_token);
    const auto held =
        static_cast<double>(real.weight_bytes + real.activation_bytes + real.kv_bytes);
    EXPECT_NEAR(predicted / held, 1, 0.01) << "rank " << shard.rank;
    EXPECT_NEAR(
        static_cast<double>(planned.weight_bytes - mapped) / static_cast<double>(real.weight_bytes),
        1,
        0.01);
    EXPECT_NEAR(static_cast<double>(planned.activation_bytes + planned.collective_bytes) /
                    static_cast<double>(real.activation_bytes),
                1,
                0.01);
    EXPECT_EQ(kPages * 32 * planned.kv_bytes_per_token, real.kv_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts,
                         Ledger,
                         testing::Values(Case{false, {}},
                                         Case{false, {}, spec::KvDtype::kFp8},
                                         Case{false, {.tp = 2}, spec::KvDtype::kInt8},
                                         Case{false, {.tp = 2}},
                                         Case{false, {.pp = 2}},
                                         Case{false, {.tp = 2, .pp = 2}},
                                         Case{true, {}},
                                         Case{true, {.tp = 2}},
                                         Case{true, {.ep = 2}}));

}  // namespace
}  // namespace inferd::model
