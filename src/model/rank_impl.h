// SPDX-License-Identifier: Apache-2.0
// What a rank is made of. The life of a step is in rank.cc, how a rank comes to be in rank_load.cc.
#pragma once

#include "model/comms_guard.h"
#include "model/mask_box.h"
#include "model/rank.h"
#include "model/row_table.h"
#include "model/shard.h"
#include "model/step_sampler.h"
#include "store/model.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace inferd::model {

class RankImpl final : public Rank {
 public:
  RankImpl(const spec::LoadRequest& request,
           store::Model model,
           std::unique_ptr<ops::Device> device,
           std::unique_ptr<Shard> shard,
           const RowLimits& limits)
      : plan_(request.shard),
        model_(std::move(model)),
        device_(std::move(device)),
        shard_(std::move(shard)),
        rows_(limits, request.shard.is_sampler()),
        page_tokens_(limits.page_tokens),
        masks_(static_cast<std::size_t>(limits.max_num_seqs)),
        sampler_(*shard_,
                 *device_,
                 rows_,
                 masks_,
                 {.group = request.shard.group,
                  .is_sampler = request.shard.is_sampler(),
                  .vocab = model_.spec.vocab_size,
                  .max_model_len = limits.max_model_len}) {}

  Result<> Reserve() { return plan_.is_sampler() ? sampler_.Reserve() : Result<>(); }

  ~RankImpl() override {
    if (!under_way_.empty()) {
      Abort();  // Else a collective without a peer would keep the device for ever.
      Drop();
    }
    SetGuard(nullptr);  // It ends before the groups and the device do.
  }

  Result<> Join(std::uint64_t generation, RankComms comms) override;
  Result<> Begin(const spec::StepPlan& plan) override;
  bool MayBegin(const spec::StepPlan& plan) const override;
  Result<std::optional<spec::StepResult>> Finish() override;
  std::size_t num_under_way() const override { return under_way_.size(); }
  bool IsDone() override {
    return under_way_.empty() || !under_way_.front().queued ||
           device_->IsStepDone(under_way_.front().on_device);
  }
  void Drop() override;
  void GiveMask(spec::TokenMask mask) override { masks_.Give(std::move(mask)); }
  void ReleaseMemory() override {
    Drop();
    joined_ = false;
    shard_->ReleaseKv();
  }
  void Abort() override;

  tensor::DeviceQueue* queue() override { return device_->queue(); }
  bool broken() const override { return device_->Broken(); }
  std::int64_t page_tokens() const override { return page_tokens_; }
  RankMemory memory() const override {
    return {shard_->weight_bytes(), shard_->activation_bytes(), shard_->kv().bytes()};
  }
  ops::GraphCounts graph_counts() const override { return device_->graph_counts(); }
  std::int64_t copied_logit_rows() const override { return shard_->copied_logit_rows(); }
  std::string Describe() const override {
    return fmt::format("rank {} on {}: layers [{}, {}), query heads [{}, {}), experts [{}, {})",
                       plan_.rank,
                       device_->Describe(),
                       plan_.layers.begin,
                       plan_.layers.end,
                       plan_.q_heads.begin,
                       plan_.q_heads.end,
                       plan_.experts.begin,
                       plan_.experts.end);
  }

 private:
  struct PendingIds {
    std::int64_t step = 0;
    std::vector<TokenPlace> places;
  };

  /// A step that has begun.
  struct UnderWay {
    bool queued = false;  // on the device; else it is done
    std::int64_t began_ns = 0;
    std::uint64_t on_device = 0;  // as Device::EndStep calls it
    std::size_t out = 0;          // as Shard::step
    std::vector<TokenPlace> places;
    spec::StepResult result;
  };

  // The ids group exists where some first-stage rank of the group is not the sampler.
  bool needs_ids_group() const {
    return (plan_.has_embedding || plan_.is_sampler()) && (plan_.tp > 1 || plan_.pp > 1);
  }
  bool receives_ids() const { return plan_.has_embedding && !plan_.is_sampler(); }
  int ids_size() const { return plan_.pp > 1 ? plan_.tp + 1 : plan_.tp; }

  void SetGuard(tensor::WaitGuard* guard) {
    if (device_->queue() != nullptr) {
      device_->queue()->SetGuard(guard);
    }
  }
  /// What the device can be given as a whole; the same on all ranks of a group.
  bool IsForDevice(const spec::StepPlan& plan) const;
  Result<> BeginStep(const spec::StepPlan& plan, UnderWay* step);
  Result<> QueueRest(UnderWay* step);
  Result<> RunRest(const spec::StepPlan& plan, UnderWay* step);
  Result<> FinishStep(UnderWay* step);
  void EndAt(std::int64_t now_ns, UnderWay* step);
  /// Nothing of a failed step stays on the device: the next generation begins on an idle one.
  void GiveUp();
  Result<> CheckOrder(const spec::StepPlan& plan) const;
  Result<> ReceiveIds(std::int64_t through_step);
  Result<> GatherInputs(std::int64_t step);
  Result<> SendHidden();
  Result<> ListEmbeddings(spec::StepResult* result);
  Result<> SendIds();

  const spec::ShardPlan plan_;
  const store::Model model_;  // the embedding is read from its mapping
  const std::unique_ptr<ops::Device> device_;
  const std::unique_ptr<Shard> shard_;
  RowTable rows_;
  const std::int64_t page_tokens_;
  MaskBox masks_;  // used by the reader thread too
  StepSampler sampler_;

  std::mutex comms_mutex_;  // Abort against Join
  RankComms comms_;
  CommsGuard guard_;
  std::uint64_t generation_ = 0;
  std::int64_t last_step_ = -1;
  bool joined_ = false;
  bool queues_steps_ = false;  // in this generation
  std::deque<UnderWay> under_way_;
  std::int64_t last_end_ns_ = 0;

  StepBatch batch_;
  std::deque<PendingIds> pending_;
  std::vector<std::int32_t> ids_;  // received
};

}  // namespace inferd::model
