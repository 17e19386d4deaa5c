// SPDX-License-Identifier: Apache-2.0
// Shard: one rank's part of the decoder. Runs a batch through its layers, taking part in the
// collectives of its groups. One config-driven forward pass; nothing here knows a model family.
#pragma once

#include "comm/communicator.h"
#include "inferd/result.h"
#include "model/expert_exchange.h"
#include "model/kv_cache.h"
#include "model/rope.h"
#include "model/sample_batch.h"
#include "model/step_batch.h"
#include "model/tp_gather.h"
#include "model/weights.h"
#include "ops/device.h"
#include "spec/parallel.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace inferd::model {

struct ShardOptions {
  std::int64_t max_batched_tokens = 512;
  std::int64_t max_num_seqs = 64;
  std::int64_t max_model_len = 0;
  std::int64_t kv_pages = 0;
  ops::KvType kv_type = ops::KvType::kF16;
  std::vector<KvScale> kv_scales;              // of its layers, for kFp8; empty: 1
  std::vector<std::int32_t> cuda_graph_sizes;  // rows, ascending, at most max_batched_tokens
  bool batch_invariant = false;
};

/// Every buffer is sized at construction; a step allocates nothing. One thread.
class Shard {
 public:
  static Result<std::unique_ptr<Shard>> Make(const spec::ModelSpec& model,
                                             const spec::ShardPlan& plan,
                                             ShardWeights weights,
                                             ops::Device& device,
                                             const ShardOptions& options);

  /// Communicators outlive the next Join; null where the group has one rank. Collective.
  Result<> Join(comm::Communicator* tp, comm::Communicator* ep);

  /// First stage: embeds batch.ids, of which kDrawnId - i stands for the token drawn at place i.
  /// Other stages: after ReceiveHidden of the previous stage's output. All ranks of a tp group call
  /// it with the same batch; with ep all groups call it. The batch stays until the next step.
  Result<> Forward(const StepBatch& batch);

  /// Residual stream, [rows, hidden], to or from the peer of another stage.
  Result<> SendHidden(comm::Communicator* pp, int to, std::int64_t rows);
  Result<> ReceiveHidden(comm::Communicator* pp, int from, std::int64_t rows);

  /// Last stage, all tp ranks: begins to compute the logits of at most max_logit_rows() rows of the
  /// last Forward, with the final softcap applied. Collective; once before each of the calls below.
  Result<> StartLogits(std::span<const std::int32_t> rows);
  /// The sampler's device may draw the first rows' tokens. The same on all ranks of the group.
  bool samples_on_device() const { return samples_on_device_; }
  Result<> ReserveSampling(const ops::SampleLimits& limits);
  /// On the sampler: draws or scores the rows from `first` on as `batch` says. The tokens stay on
  /// the device, from place `at` of the step's on, below the most sequences; token_scores() gets
  /// the scores that are asked for. Each row once.
  void SampleRows(std::int64_t first, SampleBatch* batch, std::int64_t at);
  /// Waits. The rows from `first` on, [rows - first, vocab], on the sampler's host; null on other
  /// ranks, and where there are none. The rows before it have been sampled to places [0, first):
  /// sampled_tokens() has them.
  Result<float*> FinishLogits(std::int64_t first);
  /// Instead: does not wait. All ranks of the tp group get the tokens at places [0, count) of the
  /// step, to embed them later, and in sampled_tokens() when the step is done. Collective over tp.
  Result<> ShareTokens(std::int64_t count);

  /// Two steps' tokens and experts are kept; those of step() are of the last Forward.
  std::size_t step() const { return step_; }
  const std::int32_t* sampled_tokens(std::size_t step) const {
    return reinterpret_cast<const std::int32_t*>(outs_[step].tokens.data());
  }
  const std::int32_t* sampled_tokens() const { return sampled_tokens(step_); }
  /// By place too, where they are asked for; null on ranks that do not sample.
  const ops::TokenScore* token_scores(std::size_t step) const {
    return reinterpret_cast<const ops::TokenScore*>(outs_[step].scores.data());
  }
  const ops::TokenScore* token_scores() const { return token_scores(step_); }
  /// What stands for the token drawn at place `at` of the last Forward's step in later batches,
  /// until that step's numbers are overwritten.
  std::int32_t DrawnId(std::int64_t at) const;
  /// Both, for all rows.
  Result<float*> Logits(std::span<const std::int32_t> rows);
  std::int64_t max_logit_rows() const { return max_logit_rows_; }
  /// Rows of logits that were copied to the host so far.
  std::int64_t copied_logit_rows() const { return copied_logit_rows_; }

  /// The hidden state of one row of the last Forward, after the final norm: [hidden]. Only where
  /// the head is; not collective.
  Result<std::vector<float>> FinalHidden(std::int32_t row);

  KvCache& kv() { return kv_; }
  /// Between steps: gives the pages back, makes them again (zeroed).
  void ReleaseKv();
  Result<> NeedKv();
  std::int64_t activation_bytes() const;
  std::int64_t weight_bytes() const { return weights_.bytes; }
  /// Rows sent to each local expert since the last call of ClearExpertTokens, summed over layers;
  /// of `step`, which must have been waited for.
  std::span<const std::int64_t> CountExpertTokens(std::size_t step);
  void ClearExpertTokens();

 private:
  // Activations of each product of a layer, shared by layers with equal forms. A part is this
  // rank's columns of the whole; without tp they are the same.
  struct LayerActivations {
    ops::Activations* attn_in = nullptr;
    ops::Activations* q_latent = nullptr;
    ops::Activations* attn_part = nullptr;
    ops::Activations* attn_out = nullptr;
    ops::Activations* ffn_in = nullptr;
    ops::Activations* ffn_part = nullptr;
    ops::Activations* ffn_mid = nullptr;
    ops::Activations* shared_mid = nullptr;
  };
  // What is yet to be added to x_: y_, the sum of y_ over tp, or the columns of all part_.
  enum class Owed : std::uint8_t { kNothing, kOutput, kSum, kColumns };
  // Columns per tp rank of what is gathered.
  struct GatherColumns {
    std::vector<std::int64_t> vocab, q, ffn, hidden;
  };
  struct OwnedActivations {
    std::int64_t k = 0;
    unsigned forms = 0;
    std::unique_ptr<ops::Activations> act;
  };
  // What a step leaves for the host; only where the device has its own memory.
  struct StepOut {
    ops::Memory tokens, scores;  // host, [most sequences]: drawn by the device
    // Host, [layers, tokens, top_k]: the experts chosen, on their way to be counted. Per layer how
    // many of them are of the step's rows.
    ops::Memory chosen;
    std::vector<std::int64_t> num_chosen;
  };

  Shard(const spec::ModelSpec& model,
        const spec::ShardPlan& plan,
        ShardWeights weights,
        ops::Device& device,
        const ShardOptions& options);
  Result<> AllocateArena();
  Result<> AllocateStaging();
  /// Where logits are gathered and used, which depends on how the group exchanges.
  void PlaceLogits();
  void AssignActivations();
  /// `carried`: kActCarried for rows that travel between ranks, or 0.
  ops::Activations* ActivationsFor(std::int64_t k,
                                   std::initializer_list<const ops::PackedMatrix*> matrices,
                                   unsigned carried = 0);

  /// Embedding and all layers over `rows` rows: the batch's, or more that have no token.
  Result<> Layers(const StepBatch& batch, std::int64_t rows);
  Result<> Embed(const StepBatch& batch, std::int64_t rows);
  Result<> Attention(std::int64_t layer, const StepBatch& batch, std::int64_t rows);
  /// attn_ = attention over heads of K and V, or over a latent cache (shard_latent.cc).
  Result<> HeadAttention(std::int64_t layer, const StepBatch& batch, std::int64_t rows);
  Result<> LatentAttention(std::int64_t layer, const StepBatch& batch, std::int64_t rows);
  Result<> Ffn(std::int64_t layer, std::int64_t rows);
  Result<> DenseFfn(std::int64_t layer, std::int64_t rows);
  /// y_, or with tp this rank's columns of it in part_, = weight * the parts of all tp ranks (+
  /// bias).
  Result<> Project(const ops::PackedMatrix* weight,
                   const Vector& bias,
                   const ops::Activations* part,
                   std::span<const std::int64_t> columns,
                   std::int64_t rows,
                   ops::Activations* whole);
  Result<> MoeFfn(std::int64_t layer, std::int64_t rows);
  Result<> MoeInput(std::int64_t layer, std::int64_t rows);
  /// The MoE task of a layer but for its rows.
  ops::MoeTask MoeTaskOf(const LayerWeights& weights) const;
  void LocalExperts(const ops::MoeTask& task);
  /// The layer's chosen experts are counted, now or after the step.
  void KeepChosen(std::int64_t layer, std::int64_t count);
  /// Those of all layers to the host: behind a step's graph, which knows no step's own places.
  void SendChosen(std::int64_t rows);
  bool IsMoe(std::int64_t layer) const {
    return model_.layers[static_cast<std::size_t>(plan_.layers.begin + layer)].moe;
  }
  void CountExperts(const std::int32_t* expert, std::int64_t count);
  void AddSharedExpert(std::int64_t layer, std::int64_t rows);
  /// What is to be added to x_ waits, to be exchanged and added by the norm that begins the next
  /// block, or by AddOwed; a sandwich norm does not wait.
  Result<> FinishBlock(std::int64_t rows, Owed owed, const Vector& post_norm);
  Result<> AddOwed(std::int64_t rows);
  /// y_ = what is owed.
  Result<> ExchangeOwed(std::int64_t rows);
  /// What is owed exchanged, added, and normed into `normed`, in one launch; false: not done.
  Result<bool> NormOwed(std::int64_t rows, const Vector& norm, float* normed);
  /// act or normed, whichever is given, = RMS norm of x_, with what is owed added to it.
  Result<> BeginBlock(std::int64_t rows,
                      const Vector& norm,
                      ops::Activations* act,
                      float* normed = nullptr);
  /// On the device: place 0 of the last Forward's step.
  std::int32_t* DrawnOfStep();
  Result<> AllReduce(float* data, std::int64_t rows);
  /// `count` floats of the device as the host sees them: in place, or copied to staging_.
  Result<float*> ToHost(float* data, std::int64_t count);
  /// Takes back what ToHost gave.
  void FromHost(float* data, const float* host, std::int64_t count);

  const spec::ModelSpec model_;
  const spec::ShardPlan plan_;
  const spec::Range hidden_rows_;
  const ShardOptions options_;
  ops::Device& device_;
  ShardWeights weights_;
  RopeTables rope_;
  KvCache kv_;
  std::vector<std::int32_t> kv_head_of_;
  GatherColumns columns_;
  std::int64_t max_logit_rows_ = 1;
  comm::Communicator* tp_ = nullptr;
  comm::Communicator* ep_ = nullptr;
  std::optional<TpGather> gather_;  // only with tp
  std::optional<ExpertExchange> exchange_;

  std::vector<OwnedActivations> activations_;
  std::vector<LayerActivations> layer_act_;
  std::unique_ptr<ops::Activations> head_act_;
  ops::Memory arena_;
  ops::Memory staging_;      // host; only where the device has its own memory
  ops::Memory host_logits_;  // host, [logit rows, vocab]; on the sampler, unless logits_ is that
  float* x_ = nullptr;       // [tokens, hidden], residual stream
  float* y_ = nullptr;       // [tokens, hidden], output of a block
  Owed owed_ = Owed::kNothing;
  float* part_ = nullptr;    // [tokens, local hidden rows]; only with tp
  float* normed_ = nullptr;  // [tokens, hidden], MoE input
  float* qkv_ = nullptr;     // [tokens, (q + 2 kv) * head_dim]
  float* attn_ = nullptr;    // [tokens, q * value_dim]
  // Latent attention: the query's latent [tokens, q_rank], what is kept of a token [tokens, kv_rank
  // + rope_dim], queries in that space [tokens, q, kv_rank + rope_dim], the sums [tokens, q,
  // kv_rank].
  float *q_latent_ = nullptr, *latent_ = nullptr, *latent_q_ = nullptr, *latent_y_ = nullptr;
  float* gate_up_ = nullptr;        // [tokens, 2 * widest local ffn]
  float* shared_y_ = nullptr;       // [tokens, hidden]
  float* shared_weight_ = nullptr;  // [tokens]
  float* router_ = nullptr;         // [tokens, experts]
  float* head_in_ = nullptr;        // [logit rows, hidden]
  float* logits_ = nullptr;         // [logit rows, local vocab]
  float* all_logits_ = nullptr;     // [logit rows, vocab]; where they are to be used
  bool all_on_device_ = false;      // all_logits_ is device memory
  std::int64_t num_logits_ = 0;     // rows of the last StartLogits
  bool samples_on_device_ = false;
  std::int64_t copied_logit_rows_ = 0;
  ops::Memory device_logits_;           // [logit rows, vocab]; gathered, for the device's sampler
  ops::Memory expert_, expert_weight_;  // [tokens, top_k]
  std::array<StepOut, 2> outs_;
  std::size_t step_ = 0;  // of outs_, and of drawn_
  ops::Memory drawn_;     // [2, most sequences]; on the ranks that sample or embed
  ops::Memory chosen_;    // [layers, tokens, top_k]; only where the device has its own memory
  std::vector<std::int64_t> expert_tokens_;
};

}  // namespace inferd::model
