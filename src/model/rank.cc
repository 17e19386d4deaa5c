// SPDX-License-Identifier: Apache-2.0
// The life of a step on one rank: apply the plan, gather inputs, run the layers, hand on or sample.
// On a device of its own a step whose samples are drawn there is queued as a whole: the next one
// may begin, with the tokens of this one still on the device, before the host has them.
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "model/rank_impl.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace inferd::model {
namespace {

Result<> CheckSize(const comm::Communicator* comm, std::string_view name, int size, int rank) {
  const int actual_size = comm != nullptr ? comm->size() : 1;
  const int actual_rank = comm != nullptr ? comm->rank() : 0;
  if (actual_size != size || actual_rank != (size == 1 ? 0 : rank)) {
    return FailedPrecondition(
        "group {} should have {} ranks with this one at {}; it has {} with this one at {}",
        name,
        size,
        rank,
        actual_size,
        actual_rank);
  }
  return {};
}

}  // namespace

Result<> RankImpl::Join(std::uint64_t generation, RankComms comms) {
  Drop();
  joined_ = false;
  SetGuard(nullptr);
  INFERD_TRY(CheckSize(comms.tp.get(), "tp", plan_.tp, plan_.tp_rank));
  INFERD_TRY(CheckSize(comms.ep.get(), "ep", plan_.ep, plan_.group));
  INFERD_TRY(CheckSize(comms.pp.get(), "pp", plan_.pp, plan_.stage));
  if (needs_ids_group()) {
    // The sampler comes first, then the first-stage ranks in order; at pp 1 the sampler is the
    // first of them itself.
    const int place = plan_.is_sampler() ? 0 : (plan_.pp > 1 ? plan_.tp_rank + 1 : plan_.tp_rank);
    INFERD_TRY(CheckSize(comms.ids.get(), "ids", ids_size(), place));
  }
  {
    const std::lock_guard lock(comms_mutex_);
    comms_ = std::move(comms);
  }
  guard_.Watch(comms_);
  SetGuard(guard_.empty() ? nullptr : &guard_);
  if (device_->queue() != nullptr) {
    device_->queue()->SetWaitLimit(std::chrono::milliseconds(comms_.step_deadline_ms));
  }
  rows_.Reset();
  pending_.clear();
  generation_ = generation;
  masks_.Reset(generation);
  last_step_ = -1;
  INFERD_TRY(shard_->NeedKv());
  INFERD_TRY(shard_->Join(comms_.tp.get(), comms_.ep.get()));
  // Between stages tokens travel on the host, and to experts of other ranks rows do.
  queues_steps_ =
      device_->StepsAtOnce() > 1 && shard_->samples_on_device() && plan_.pp == 1 && plan_.ep == 1;
  joined_ = true;
  return {};
}

void RankImpl::Abort() {
  masks_.Abort();
  const std::lock_guard lock(comms_mutex_);
  for (comm::Communicator* comm :
       {comms_.tp.get(), comms_.ep.get(), comms_.pp.get(), comms_.ids.get()}) {
    if (comm != nullptr) {
      comm->Abort();
    }
  }
}

Result<> RankImpl::CheckOrder(const spec::StepPlan& plan) const {
  if (!joined_ || plan.generation != generation_) {
    return FailedPrecondition(
        "step {} is of generation {}, this rank of {}", plan.step, plan.generation, generation_);
  }
  if (last_step_ >= 0 && plan.step != last_step_ + 1) {
    return FailedPrecondition("step {} came after step {}", plan.step, last_step_);
  }
  return {};
}

void RankImpl::GiveUp() {
  if (!guard_.empty()) {
    Abort();
  }
  if (!guard_.empty() || queues_steps_) {
    (void)device_->Wait();
  }
  under_way_.clear();
}

void RankImpl::Drop() {
  if (!under_way_.empty()) {
    (void)device_->Wait();
    under_way_.clear();
    joined_ = false;
  }
}

bool RankImpl::IsForDevice(const spec::StepPlan& plan) const {
  const auto is_for_device = [&](const spec::RowWork& work) {
    if (work.group != plan_.group) {
      return true;
    }
    if (!rows_.has(work.row)) {
      return false;
    }
    const auto opens = [&](const spec::OpenRow& open) {
      return open.group == work.group && open.row == work.row;
    };
    const auto open = std::find_if(plan.open_rows.begin(), plan.open_rows.end(), opens);
    const RowTable::Row& row = rows_.row(work.row);
    return open != plan.open_rows.end()
               ? StepSampler::IsForDevice(work, open->sampling, open->constrained)
               : StepSampler::IsForDevice(work, row.params, row.constrained);
  };
  return queues_steps_ && std::all_of(plan.work.begin(), plan.work.end(), is_for_device);
}

bool RankImpl::MayBegin(const spec::StepPlan& plan) const {
  if (under_way_.empty()) {
    return true;
  }
  // What the sampler remembers must have the token that the row goes on from.
  const auto waits = [&](const spec::RowWork& work) {
    if (work.group != plan_.group || !work.sample) {
      return false;
    }
    const RowTable::Row& row = rows_.row(work.row);
    return row.sampling.remembers() && work.start <= row.drawn_position &&
           row.drawn_position < work.start + work.count &&
           static_cast<std::int64_t>(row.tokens.size()) <= row.drawn_position;
  };
  return under_way_.size() < static_cast<std::size_t>(device_->StepsAtOnce()) &&
         under_way_.back().queued && IsForDevice(plan) &&
         std::none_of(plan.work.begin(), plan.work.end(), waits);
}

Result<> RankImpl::Begin(const spec::StepPlan& plan) {
  INFERD_CHECK(MayBegin(plan));
  UnderWay step;
  Result<> begun = BeginStep(plan, &step);
  if (begun.ok()) {
    under_way_.push_back(std::move(step));
  } else {
    GiveUp();
  }
  return begun;
}

Result<> RankImpl::BeginStep(const spec::StepPlan& plan, UnderWay* step) {
  step->began_ns = base::SteadyClock::Get().NowNs();
  INFERD_TRY(CheckOrder(plan));
  step->queued = IsForDevice(plan);
  step->result.generation = plan.generation;
  step->result.step = plan.step;
  step->result.group = plan_.group;
  INFERD_TRY(rows_.Apply(plan));
  last_step_ = plan.step;
  shard_->kv().Zero(*device_, rows_.fresh_pages());
  rows_.FillBatch(&batch_);
  INFERD_TRY(GatherInputs(plan.step));
  if (receives_ids() && !step->queued && !rows_.places().empty()) {
    pending_.push_back({plan.step, {rows_.places().begin(), rows_.places().end()}});
  }
  shard_->ClearExpertTokens();
  INFERD_TRY(shard_->Forward(batch_));
  return step->queued ? QueueRest(step) : RunRest(plan, step);
}

Result<> RankImpl::QueueRest(UnderWay* step) {
  INFERD_TRY(sampler_.Queue(batch_, &step->result));
  step->places.assign(rows_.places().begin(), rows_.places().end());
  step->out = shard_->step();
  step->on_device = device_->EndStep();
  return {};
}

Result<> RankImpl::RunRest(const spec::StepPlan& plan, UnderWay* step) {
  if (!plan_.has_head) {
    INFERD_TRY(SendHidden());
    if (!guard_.empty()) {
      INFERD_TRY(device_->Wait());  // The next step fills the host memory that this one reads.
    }
    return {};
  }
  if (plan_.is_sampler()) {
    INFERD_TRY(ListEmbeddings(&step->result));
  }
  INFERD_TRY(sampler_.Run(batch_, plan.step, comms_.step_deadline_ms, &step->result));
  INFERD_TRY(device_->Wait());
  if (!plan_.is_sampler()) {
    return {};
  }
  INFERD_TRY(SendIds());
  step->out = shard_->step();
  EndAt(base::SteadyClock::Get().NowNs(), step);
  return {};
}

Result<> RankImpl::FinishStep(UnderWay* step) {
  if (!step->queued) {
    return {};
  }
  INFERD_TRY(device_->WaitForStep(step->on_device));
  const std::span<const std::int32_t> tokens(shard_->sampled_tokens(step->out),
                                             step->places.size());
  sampler_.Take(step->places, tokens, shard_->token_scores(step->out), &step->result);
  shard_->ClearExpertTokens();
  EndAt(base::SteadyClock::Get().NowNs(), step);
  return {};
}

// The device has worked on this step since it began, or since the one before it was done.
void RankImpl::EndAt(std::int64_t now_ns, UnderWay* step) {
  const std::span<const std::int64_t> expert_tokens = shard_->CountExpertTokens(step->out);
  step->result.expert_tokens.assign(expert_tokens.begin(), expert_tokens.end());
  step->result.compute_ns = now_ns - std::max(step->began_ns, last_end_ns_);
  last_end_ns_ = now_ns;
}

Result<std::optional<spec::StepResult>> RankImpl::Finish() {
  if (under_way_.empty()) {
    return FailedPrecondition("no step is under way");
  }
  UnderWay& step = under_way_.front();
  if (Result<> finished = FinishStep(&step); !finished.ok()) {
    const std::int64_t number = step.result.step;
    GiveUp();
    return finished.error().WithContext(fmt::format("step {}", number));
  }
  std::optional<spec::StepResult> result;
  if (plan_.is_sampler()) {
    result = std::move(step.result);
  }
  under_way_.pop_front();
  return result;
}

// First stage: token ids, waiting for those of an earlier step only when a row reads them (or when
// so many steps are outstanding that they must have come). Other stages: the previous stage's
// output.
Result<> RankImpl::GatherInputs(std::int64_t step) {
  if (plan_.has_embedding) {
    if (receives_ids()) {
      INFERD_TRY(ReceiveIds(std::max(rows_.newest_input_step(), step - plan_.pp - 1)));
    }
    return rows_.FillIds(&batch_);
  }
  if (batch_.rows() == 0) {
    return {};
  }
  return shard_->ReceiveHidden(comms_.pp.get(), plan_.stage - 1, batch_.rows());
}

Result<> RankImpl::ReceiveIds(std::int64_t through_step) {
  while (!pending_.empty() && pending_.front().step <= through_step) {
    const std::vector<TokenPlace>& places = pending_.front().places;
    ids_.resize(places.size());
    INFERD_TRY(comms_.ids->Recv(std::as_writable_bytes(std::span(ids_)), 0));
    for (std::size_t i = 0; i < places.size(); ++i) {
      rows_.SetToken(places[i], ids_[i]);
    }
    pending_.pop_front();
  }
  return {};
}

Result<> RankImpl::SendHidden() {
  if (batch_.rows() == 0) {
    return {};
  }
  return shard_->SendHidden(comms_.pp.get(), plan_.stage + 1, batch_.rows());
}

Result<> RankImpl::ListEmbeddings(spec::StepResult* result) {
  const auto work = rows_.work();
  for (std::size_t i = 0; i < work.size(); ++i) {
    if (work[i]->embed) {
      const auto last =
          static_cast<std::int32_t>(batch_.sequences[i].first_row + work[i]->count - 1);
      INFERD_ASSIGN(std::vector<float> values, shard_->FinalHidden(last));
      result->embeddings.push_back({work[i]->row, plan_.group, std::move(values)});
    }
  }
  return {};
}

Result<> RankImpl::SendIds() {
  if (comms_.ids == nullptr || sampler_.ids().empty()) {
    return {};
  }
  for (int peer = 1; peer < comms_.ids->size(); ++peer) {
    INFERD_TRY(comms_.ids->Send(std::as_bytes(sampler_.ids()), peer));
  }
  return {};
}

}  // namespace inferd::model
