// SPDX-License-Identifier: Apache-2.0
// Final norm, head and the gathering of logits on the sampler rank.
#include "base/check.h"
#include "model/shard.h"

#include <algorithm>
#include <cmath>

namespace inferd::model {

Result<float*> Shard::Logits(std::span<const std::int32_t> rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  INFERD_CHECK(plan_.has_head && count <= max_logit_rows_);
  if (count == 0) {
    return static_cast<float*>(nullptr);
  }
  const auto row_floats = static_cast<std::size_t>(model_.hidden_size);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    device_.Copy(head_in_ + i * row_floats,
                 x_ + static_cast<std::size_t>(rows[i]) * row_floats,
                 row_floats * sizeof(float));
  }
  device_.RmsNorm(head_in_,
                  weights_.final_norm.data(),
                  static_cast<float>(model_.norm_eps),
                  count,
                  model_.hidden_size,
                  head_act_.get());
  const ops::MatMulTask head{weights_.head.get(), nullptr, logits_, plan_.vocab.size()};
  device_.MatMul(*head_act_, count, {&head, 1});
  float* const all = gather_ || host_logits_.bytes() > 0 ? host_logits_.floats() : logits_;
  if (gather_) {
    INFERD_TRY(gather_->Gather(logits_, columns_.vocab, count, all));
  } else if (all != logits_) {
    device_.Copy(all, logits_, static_cast<std::size_t>(count * model_.vocab_size) * sizeof(float));
  }
  INFERD_TRY(device_.Wait());
  if (all != nullptr && model_.final_softcap != 0) {
    Softcap(all, count);
  }
  return all;
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

void Shard::Softcap(float* logits, std::int64_t rows) {
  constexpr std::int64_t kPiece = 4096;
  struct Context {
    float* logits;
    std::int64_t count;
    float cap;
  } context{logits, rows * model_.vocab_size, static_cast<float>(model_.final_softcap)};
  device_.ParallelFor(
      (context.count + kPiece - 1) / kPiece, &context, [](void* opaque, std::int64_t piece) {
        const Context& c = *static_cast<Context*>(opaque);
        const std::int64_t end = std::min(c.count, (piece + 1) * kPiece);
        for (std::int64_t i = piece * kPiece; i < end; ++i) {
          c.logits[i] = c.cap * std::tanh(c.logits[i] / c.cap);
        }
      });
}

}  // namespace inferd::model
