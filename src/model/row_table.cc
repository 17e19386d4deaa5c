// SPDX-License-Identifier: Apache-2.0
#include "model/row_table.h"

#include "base/error.h"

#include <algorithm>

namespace inferd::model {

RowTable::RowTable(const RowLimits& limits, bool is_sampler)
    : limits_(limits),
      is_sampler_(is_sampler),
      rows_(static_cast<std::size_t>(limits.max_num_seqs)) {}

void RowTable::Reset() {
  for (Row& row : rows_) {
    row = Row{};
  }
  work_.clear();
  fresh_pages_.clear();
  places_.clear();
}

Result<> RowTable::CheckRow(std::int32_t row) const {
  if (row < 0 || row >= limits_.max_num_seqs) {
    return InvalidArgument("step names row {}; there are {} rows", row, limits_.max_num_seqs);
  }
  return {};
}

Result<> RowTable::CheckPage(std::int32_t page) const {
  if (page < 0 || page >= limits_.kv_pages) {
    return InvalidArgument("step names KV page {}; there are {} pages", page, limits_.kv_pages);
  }
  return {};
}

Result<> RowTable::Apply(const spec::StepPlan& plan) {
  for (const auto& [group, row] : plan.close_rows) {
    if (group == limits_.group) {
      INFERD_TRY(CheckRow(row));
      rows_[static_cast<std::size_t>(row)].epoch = 0;
    }
  }
  for (const spec::OpenRow& open : plan.open_rows) {
    if (open.group == limits_.group) {
      INFERD_TRY(Open(open));
    }
  }
  fresh_pages_.clear();
  for (const auto& [group, page] : plan.fresh_pages) {
    if (group == limits_.group) {
      INFERD_TRY(CheckPage(page));
      fresh_pages_.push_back(page);
    }
  }
  work_.clear();
  places_.clear();
  newest_input_step_ = -1;
  batched_tokens_ = 0;
  for (const spec::RowWork& work : plan.work) {
    if (work.group == limits_.group) {
      INFERD_TRY(AddWork(work));
    }
  }
  return {};
}

Result<> RowTable::Open(const spec::OpenRow& open) {
  INFERD_TRY(CheckRow(open.row));
  if (static_cast<std::int64_t>(open.tokens.size()) > limits_.max_model_len) {
    return InvalidArgument("row {} opens with {} tokens; the model length is {}",
                           open.row,
                           open.tokens.size(),
                           limits_.max_model_len);
  }
  if (open.num_prompt_tokens < 0 ||
      static_cast<std::size_t>(open.num_prompt_tokens) > open.tokens.size()) {
    return InvalidArgument("row {} opens with {} prompt tokens out of {}",
                           open.row,
                           open.num_prompt_tokens,
                           open.tokens.size());
  }
  Row& row = rows_[static_cast<std::size_t>(open.row)];
  row.epoch = ++last_epoch_;
  row.tokens.assign(open.tokens.begin(), open.tokens.end());
  row.num_prompt = open.num_prompt_tokens;
  row.constrained = open.constrained;
  row.pages.clear();
  row.drawn_position = -1;
  row.params = open.sampling;
  if (is_sampler_) {
    row.sampling = SamplingState(open.sampling, row.tokens, row.num_prompt);
  }
  return {};
}

Result<> RowTable::AddWork(const spec::RowWork& work) {
  INFERD_TRY(CheckRow(work.row));
  Row& row = rows_[static_cast<std::size_t>(work.row)];
  const std::int64_t end = work.start + work.count;
  if (row.epoch == 0) {
    return FailedPrecondition("step has work for row {}, which is not open", work.row);
  }
  if (work.count <= 0 || work.start < 0 || end > limits_.max_model_len) {
    return InvalidArgument("row {} is to run positions [{}, {}); the model length is {}",
                           work.row,
                           work.start,
                           end,
                           limits_.max_model_len);
  }
  const auto num_guessed = static_cast<std::int64_t>(work.draft.size());
  if (num_guessed > 0 && (!work.sample || row.constrained || num_guessed >= work.count)) {
    return InvalidArgument(
        "row {} is to run {} positions with {} guesses; a draft needs a known token before it, a "
        "sample, and a row without masks",
        work.row,
        work.count,
        num_guessed);
  }
  batched_tokens_ += work.count;
  if (batched_tokens_ > limits_.max_batched_tokens) {
    return InvalidArgument("step holds more than the limit of {} tokens",
                           limits_.max_batched_tokens);
  }
  if (work.reset_pages) {
    row.pages.clear();
  }
  for (const std::int32_t page : work.new_pages) {
    INFERD_TRY(CheckPage(page));
    row.pages.push_back(page);
  }
  if (static_cast<std::int64_t>(row.pages.size()) * limits_.page_tokens < end) {
    return InvalidArgument("row {} has {} KV pages of {} tokens, too few for {} positions",
                           work.row,
                           row.pages.size(),
                           limits_.page_tokens,
                           end);
  }
  work_.push_back(&work);
  newest_input_step_ = std::max(newest_input_step_, work.input_step);
  if (work.sample) {
    // SetToken then moves no memory, which another thread may be reading.
    if (row.tokens.capacity() <= static_cast<std::size_t>(end)) {
      row.tokens.reserve(2 * static_cast<std::size_t>(end + 1));
    }
    for (std::int64_t position = end - num_guessed; position <= end; ++position) {
      places_.push_back({work.row, row.epoch, position, row.params.logprobs >= 0});
    }
  }
  return {};
}

void RowTable::FillBatch(StepBatch* batch) const {
  batch->Clear();
  for (const spec::RowWork* work : work_) {
    ops::AttentionSequence sequence;
    sequence.first_row = batch->rows();
    sequence.num_rows = work->count;
    sequence.start = work->start;
    sequence.pages = row(work->row).pages;
    batch->sequences.push_back(sequence);
    for (std::int64_t i = 0; i < work->count; ++i) {
      batch->positions.push_back(static_cast<std::int32_t>(work->start + i));
    }
  }
}

Result<> RowTable::FillIds(StepBatch* batch) const {
  batch->ids.clear();
  for (const spec::RowWork* work : work_) {
    const Row& of_work = row(work->row);
    const std::vector<std::int32_t>& tokens = of_work.tokens;
    const std::int64_t end =
        work->start + work->count - static_cast<std::int64_t>(work->draft.size());
    const auto known = static_cast<std::int64_t>(tokens.size());
    const bool last_is_drawn =
        known == end - 1 && of_work.drawn_position == known && work->start <= known;
    if (known < end && !last_is_drawn) {
      return FailedPrecondition("row {} is to run positions [{}, {}), but only {} tokens are known",
                                work->row,
                                work->start,
                                end,
                                tokens.size());
    }
    batch->ids.insert(
        batch->ids.end(), tokens.begin() + work->start, tokens.begin() + std::min(known, end));
    if (last_is_drawn) {
      batch->ids.push_back(of_work.drawn_id);
    }
    batch->ids.insert(batch->ids.end(), work->draft.begin(), work->draft.end());
  }
  return {};
}

void RowTable::SetDrawn(const TokenPlace& place, std::int32_t id) {
  Row& row = rows_[static_cast<std::size_t>(place.row)];
  row.drawn_position = place.position;
  row.drawn_id = id;
}

void RowTable::SetToken(const TokenPlace& place, std::int32_t token) {
  Row& row = rows_[static_cast<std::size_t>(place.row)];
  if (token == kNoToken || row.epoch != place.epoch) {
    return;
  }
  const auto position = static_cast<std::size_t>(place.position);
  if (row.tokens.size() <= position) {
    row.tokens.resize(position + 1, -1);
  }
  row.tokens[position] = token;
  if (is_sampler_) {
    row.sampling.AddOutput(token);
  }
}

}  // namespace inferd::model
