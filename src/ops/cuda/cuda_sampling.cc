// SPDX-License-Identifier: Apache-2.0
// Tokens from logits on a CUDA device, where they stay until they are asked for, and what the
// logits say of them.
#include "base/check.h"
#include "kernels/rows/rows_cuda.h"
#include "kernels/sampling/sampling_cuda.h"
#include "ops/cuda/cuda_device.h"

#include <algorithm>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {
namespace {

namespace k = kernels::cuda;

static_assert(kMaxBansOfRow == k::kMaxBans);

std::int64_t WordsOf(std::int64_t vocab) { return (vocab + 31) / 32; }

k::SamplingRow RowOf(const SampleRow& row) {
  k::SamplingRow to;
  to.seed = row.seed;
  to.position = row.position;
  to.top_p = row.top_p;
  to.inverse_temperature = row.inverse_temperature;
  to.min_p_log = row.min_p_log;
  to.has_min_p = row.has_min_p ? 1 : 0;
  to.top_k = row.top_k;
  to.ban_begin = row.ban_begin;
  to.ban_end = row.ban_end;
  to.is_given = row.is_given ? 1 : 0;
  to.given = row.given;
  to.top = row.top;
  return to;
}

k::LogitEdit EditOf(const LogitEdit& edit) {
  return {edit.row, edit.token, edit.add, edit.minus_first, edit.repetition, edit.minus, 0};
}

}  // namespace

void CudaDevice::Softcap(float* x, float cap, std::int64_t count) {
  if (Use()) {
    Check(k::Softcap(x, cap, count, stream_), "the softcap");
  }
}

Result<> CudaDevice::ReserveSampling(const SampleLimits& limits) {
  constexpr std::int64_t kAlign = 256;
  const std::int64_t row_bytes = static_cast<std::int64_t>(sizeof(k::SamplingRow)) + 1 +
                                 WordsOf(limits.vocab) * static_cast<std::int64_t>(sizeof(int)) +
                                 static_cast<std::int64_t>(sizeof(TokenScore));
  const std::int64_t bytes = limits.rows * (row_bytes + 6 * kAlign) +
                             limits.edits * static_cast<std::int64_t>(sizeof(k::LogitEdit)) +
                             limits.bans * static_cast<std::int64_t>(sizeof(std::int32_t));
  INFERD_ASSIGN(sample_staging_, MakeStaging(static_cast<std::size_t>(limits.tasks * bytes)));
  return {};
}

void CudaDevice::Sample(const SampleTask& task) {
  const std::size_t rows = task.rows.size();
  if (rows == 0 || !Use()) {
    return;
  }
  const auto send = [&](auto place) {
    INFERD_CHECK_MSG(place.host != nullptr || place.count == 0, "samples fit what was reserved");
    if (place.count > 0) {
      Check(Staging::Send(place, stream_), "what to sample by");
    }
  };
  const auto params = sample_staging_.Take<k::SamplingRow>(rows);
  const auto has_mask = sample_staging_.Take<std::uint8_t>(rows);
  const auto edits = sample_staging_.Take<k::LogitEdit>(task.edits.size());
  const auto bans = sample_staging_.Take<std::int32_t>(task.bans.size());
  const auto masks = sample_staging_.Take<std::uint32_t>(task.masks.size());
  const auto scores = sample_staging_.Take<TokenScore>(task.scores != nullptr ? rows : 0);
  INFERD_CHECK_MSG(params.host != nullptr && has_mask.host != nullptr && scores.host != nullptr,
                   "samples fit what was reserved");
  std::transform(task.rows.begin(), task.rows.end(), params.host, RowOf);
  std::transform(task.rows.begin(), task.rows.end(), has_mask.host, [](const SampleRow& row) {
    return static_cast<std::uint8_t>(row.has_mask ? 1 : 0);
  });
  std::transform(task.edits.begin(), task.edits.end(), edits.host, EditOf);
  std::copy(task.bans.begin(), task.bans.end(), bans.host);
  std::copy(task.masks.begin(), task.masks.end(), masks.host);
  send(params);
  send(has_mask);
  send(edits);
  send(bans);
  send(masks);
  k::SamplingArgs args;
  args.logits = task.logits;
  args.ld = task.vocab;
  args.rows = static_cast<std::int64_t>(rows);
  args.vocab = static_cast<std::int32_t>(task.vocab);
  args.mask = task.masks.empty() ? nullptr : masks.device;
  args.has_mask = has_mask.device;
  args.mask_words = static_cast<std::int32_t>(WordsOf(task.vocab));
  args.edits = edits.device;
  args.num_edits = static_cast<std::int64_t>(task.edits.size());
  args.bans = bans.device;
  args.params = params.device;
  args.token = task.tokens;
  args.scores = scores.device;
  Check(k::Sample(args, stream_), "sampling");
  if (task.scores != nullptr) {
    Check(k::Score(args, stream_), "logprobs");
    Copy(task.scores, scores.device, rows * sizeof(TokenScore));
  }
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
