// SPDX-License-Identifier: Apache-2.0
// Final norm, head and the gathering of logits on the sampler rank.
#include "base/check.h"
#include "model/shard.h"

#include <algorithm>
#include <cmath>

namespace inferd::model {

Result<> Shard::ReserveSampling(const ops::SampleLimits& limits) {
  for (StepOut& out : outs_) {
    INFERD_ASSIGN(
        out.scores,
        device_.AllocateHost(
            static_cast<std::size_t>(options_.max_num_seqs) * sizeof(ops::TokenScore), "logprobs"));
  }
  ops::SampleLimits of_step = limits;
  of_step.tasks = (options_.max_num_seqs + max_logit_rows_ - 1) / max_logit_rows_;
  return device_.ReserveSampling(of_step);
}

Result<> Shard::StartLogits(std::span<const std::int32_t> rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  INFERD_CHECK(plan_.has_head && count <= max_logit_rows_);
  num_logits_ = count;
  if (count == 0) {
    return {};
  }
  if (device_.SharesHostMemory()) {
    const auto row_floats = static_cast<std::size_t>(model_.hidden_size);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      device_.Copy(head_in_ + i * row_floats,
                   x_ + static_cast<std::size_t>(rows[i]) * row_floats,
                   row_floats * sizeof(float));
    }
  } else {
    device_.Embed(DType::kF32,
                  reinterpret_cast<const std::byte*>(x_),
                  options_.max_batched_tokens,
                  0,
                  rows,
                  model_.hidden_size,
                  1.0F,
                  head_in_);
  }
  device_.RmsNorm(head_in_,
                  weights_.final_norm.data(),
                  static_cast<float>(model_.norm_eps),
                  count,
                  model_.hidden_size,
                  head_act_.get());
  const ops::MatMulTask head{weights_.head.get(), nullptr, logits_, plan_.vocab.size()};
  device_.MatMul(*head_act_, count, {&head, 1});
  if (model_.final_softcap != 0) {
    device_.Softcap(logits_, static_cast<float>(model_.final_softcap), count * plan_.vocab.size());
  }
  return gather_ ? gather_->Gather(logits_, columns_.vocab, count, all_logits_) : Result<>();
}

void Shard::SampleRows(std::int64_t first, SampleBatch* batch, std::int64_t at) {
  INFERD_CHECK(samples_on_device_ && first + batch->rows() <= num_logits_ &&
               at + batch->rows() <= options_.max_num_seqs);
  auto* const scores = reinterpret_cast<ops::TokenScore*>(outs_[step_].scores.data());
  device_.Sample(
      batch->Task(all_logits_ + first * model_.vocab_size, DrawnOfStep() + at, scores + at));
}

std::int32_t* Shard::DrawnOfStep() {
  return reinterpret_cast<std::int32_t*>(drawn_.data()) +
         static_cast<std::int64_t>(step_) * options_.max_num_seqs;
}

std::int32_t Shard::DrawnId(std::int64_t at) const {
  return static_cast<std::int32_t>(ops::kDrawnId -
                                   (static_cast<std::int64_t>(step_) * options_.max_num_seqs + at));
}

Result<> Shard::ShareTokens(std::int64_t count) {
  INFERD_CHECK(samples_on_device_ && count <= options_.max_num_seqs);
  std::int32_t* const tokens = DrawnOfStep();
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(std::int32_t);
  if (tp_ != nullptr) {
    std::vector<std::size_t> of_rank(static_cast<std::size_t>(plan_.tp), 0);
    of_rank.front() = bytes;  // the sampler's
    INFERD_TRY(tp_->device()->AllGather(tokens, tokens, of_rank));
  }
  device_.Copy(outs_[step_].tokens.data(), tokens, bytes);
  return {};
}

Result<float*> Shard::FinishLogits(std::int64_t first) {
  float* host = nullptr;
  if (samples_on_device_ && plan_.is_sampler() && first > 0) {
    device_.Copy(outs_[step_].tokens.data(),
                 DrawnOfStep(),
                 static_cast<std::size_t>(first) * sizeof(std::int32_t));
  }
  if (all_logits_ != nullptr && first < num_logits_) {
    host = all_logits_ + first * model_.vocab_size;
    if (all_on_device_) {
      const std::int64_t count = (num_logits_ - first) * model_.vocab_size;
      device_.Copy(host_logits_.data(), host, static_cast<std::size_t>(count) * sizeof(float));
      host = host_logits_.floats();
      copied_logit_rows_ += num_logits_ - first;
    }
  }
  INFERD_TRY(device_.Wait());
  return host;
}

Result<float*> Shard::Logits(std::span<const std::int32_t> rows) {
  INFERD_TRY(StartLogits(rows));
  return FinishLogits(0);
}

Result<std::vector<float>> Shard::FinalHidden(std::int32_t row) {
  INFERD_CHECK(plan_.has_head);
  const auto hidden = static_cast<std::size_t>(model_.hidden_size);
  INFERD_ASSIGN(const float* const x, ToHost(x_ + row * model_.hidden_size, model_.hidden_size));
  double squares = 0;
  for (std::size_t i = 0; i < hidden; ++i) {
    squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + model_.norm_eps);
  std::vector<float> values(hidden);
  for (std::size_t i = 0; i < hidden; ++i) {
    values[i] = static_cast<float>(x[i] * scale * weights_.final_norm.host()[i]);
  }
  return values;
}

}  // namespace inferd::model
