// SPDX-License-Identifier: Apache-2.0
// RowTable: the worker's memory of running sequences (tokens, page table, sampling state), one slot
// per row. Step plans change it; batches are read from it. Plain data, no device.
#pragma once

#include "inferd/result.h"
#include "model/sampler.h"
#include "model/step_batch.h"
#include "spec/step.h"

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace inferd::model {

struct RowLimits {
  std::int32_t group = 0;
  std::int32_t max_num_seqs = 0;
  std::int64_t max_batched_tokens = 0;
  std::int64_t max_model_len = 0;
  std::int64_t kv_pages = 0;
  std::int64_t page_tokens = 0;
};

/// A token that a step will give: where it belongs once it is known.
struct TokenPlace {
  std::int32_t row = 0;
  std::uint64_t epoch =
      0;  // of the row when the step was planned: a reopened row no longer wants it
  std::int64_t position = 0;
  bool scored = false;  // its logprob is asked for
};

/// Instead of a token: an earlier guess was wrong, so this place got none.
inline constexpr std::int32_t kNoToken = std::numeric_limits<std::int32_t>::min();

class RowTable {
 public:
  struct Row {
    std::uint64_t epoch = 0;  // 0: closed; else new with every opening
    std::vector<std::int32_t> tokens;
    std::int64_t num_prompt = 0;
    bool constrained = false;  // samples wait for a mask
    std::vector<std::int32_t> pages;
    spec::SamplingParams params;
    SamplingState sampling;  // on the sampler rank only
    // The token at this position has been drawn by the device, which knows it by this id
    // (Shard::DrawnId); it counts until SetToken brings the token.
    std::int64_t drawn_position = -1;
    std::int32_t drawn_id = 0;
  };

  explicit RowTable(const RowLimits& limits, bool is_sampler);

  /// Closes and opens rows, grows page tables, keeps the work of this group. Refuses what does not
  /// fit the limits.
  Result<> Apply(const spec::StepPlan& plan);
  void Reset();

  /// Of the plan last applied; valid as long as that plan.
  std::span<const spec::RowWork* const> work() const { return work_; }
  /// Pages of this group to be zeroed first.
  std::span<const std::int32_t> fresh_pages() const { return fresh_pages_; }
  /// Where the tokens sampled in this step belong, in work order: one each, and one more for each
  /// guess.
  std::span<const TokenPlace> places() const { return places_; }
  /// Latest step whose tokens this step reads; -1: none.
  std::int64_t newest_input_step() const { return newest_input_step_; }

  std::int32_t group() const { return limits_.group; }
  /// Of a plan that has not been applied too: false when there is no such row.
  bool has(std::int32_t row) const { return row >= 0 && row < limits_.max_num_seqs; }
  const Row& row(std::int32_t row) const { return rows_[static_cast<std::size_t>(row)]; }
  /// Positions and sequences of the work; ids stay empty.
  void FillBatch(StepBatch* batch) const;
  /// Fails when a token is known neither to the host nor to the device.
  Result<> FillIds(StepBatch* batch) const;
  /// The token at `place` is on the device, which knows it by `id`.
  void SetDrawn(const TokenPlace& place, std::int32_t id);
  /// Different rows may be set by different threads at once.
  void SetToken(const TokenPlace& place, std::int32_t token);

 private:
  Result<> Open(const spec::OpenRow& open);
  Result<> AddWork(const spec::RowWork& work);
  Result<> CheckRow(std::int32_t row) const;
  Result<> CheckPage(std::int32_t page) const;

  const RowLimits limits_;
  const bool is_sampler_;
  std::uint64_t last_epoch_ = 0;
  std::vector<Row> rows_;
  std::vector<const spec::RowWork*> work_;
  std::vector<std::int32_t> fresh_pages_;
  std::vector<TokenPlace> places_;
  std::int64_t newest_input_step_ = -1;
  std::int64_t batched_tokens_ = 0;
};

}  // namespace inferd::model
