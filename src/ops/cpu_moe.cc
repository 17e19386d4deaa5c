// SPDX-License-Identifier: Apache-2.0
// Routed experts on the CPU device. Tokens are sorted by expert, so that each expert's panels are
// read once per block of rows; results return to their (row, slot) and are summed in slot order, so
// a row's bits do not depend on its neighbours.
#include "base/check.h"
#include "ops/cpu_device.h"
#include "ops/cpu_region.h"
#include "ops/cpu_route.h"

#include <algorithm>
#include <span>

namespace inferd::ops {
namespace {

// Bounds the buffers: rows are taken in blocks of at most this many (row, slot) pairs.
constexpr std::int64_t kMaxAssignments = 2048;

unsigned FormsOf(std::span<const PackedMatrix* const> weights) {
  unsigned forms = 0;
  for (const PackedMatrix* weight : weights) {
    forms |= weight->form();
  }
  return forms;
}

tensor::HostBuffer FloatsOrDie(std::int64_t count) {
  Result<tensor::HostBuffer> buffer =
      tensor::HostBuffer::Allocate(static_cast<std::size_t>(count) * 4);
  INFERD_CHECK_MSG(buffer.ok(), "expert buffers fit the planned memory");
  return std::move(buffer).value();
}

// body(expert, first, rows): the experts that have rows, which lie sorted from `begin` on.
template <class F>
void ForEachUsed(std::span<const std::int32_t> begin, F&& body) {
  for (std::size_t e = 0; e + 1 < begin.size(); ++e) {
    if (begin[e] < begin[e + 1]) {
      body(e, begin[e], begin[e + 1] - begin[e]);
    }
  }
}

float* Floats(tensor::HostBuffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

}  // namespace

// Counting sort: place of each (row, slot) among the assignments of its expert, rows ascending.
void CpuDevice::SortByExpert(const MoeTask& task, std::int64_t first_row, std::int64_t rows) {
  const std::int64_t experts = static_cast<std::int64_t>(task.gate.size());
  const std::int64_t pairs = rows * task.top_k;
  const std::int32_t* expert = task.expert + first_row * task.top_k;
  moe_.begin.assign(static_cast<std::size_t>(experts + 1), 0);
  moe_.slot_of.assign(static_cast<std::size_t>(pairs), -1);
  const auto local = [&](std::int64_t i) { return expert[i] - task.first_expert; };
  const auto is_here = [&](std::int64_t i) { return local(i) >= 0 && local(i) < experts; };
  for (std::int64_t i = 0; i < pairs; ++i) {
    if (is_here(i)) {
      ++moe_.begin[static_cast<std::size_t>(local(i)) + 1];
    }
  }
  for (std::size_t e = 1; e < moe_.begin.size(); ++e) {
    moe_.begin[e] += moe_.begin[e - 1];
  }
  std::vector<std::int32_t> next = moe_.begin;
  for (std::int64_t i = 0; i < pairs; ++i) {
    if (is_here(i)) {
      moe_.slot_of[static_cast<std::size_t>(i)] = next[static_cast<std::size_t>(local(i))]++;
    }
  }
}

void CpuDevice::ReserveMoe(const MoeTask& task, std::int64_t assignments) {
  const std::int64_t hidden = task.gate[0]->k();
  const std::int64_t ffn = task.gate[0]->n();
  const unsigned in_forms = FormsOf(task.gate) | FormsOf(task.up);
  const unsigned mid_forms = FormsOf(task.down);
  if (assignments <= moe_.assignments && hidden == moe_.hidden && ffn == moe_.ffn &&
      in_forms == moe_.in_forms && mid_forms == moe_.mid_forms) {
    return;
  }
  moe_.assignments = std::max(assignments, moe_.assignments);
  moe_.hidden = hidden;
  moe_.ffn = ffn;
  moe_.in_forms = in_forms;
  moe_.mid_forms = mid_forms;
  moe_.in = std::make_unique<CpuActivations>(moe_.assignments, hidden, in_forms, kernels_);
  moe_.mid = std::make_unique<CpuActivations>(moe_.assignments, ffn, mid_forms, kernels_);
  moe_.out = FloatsOrDie(moe_.assignments * hidden);
}

void CpuDevice::AddGatedExperts(const MoeTask& task) {
  gated_jobs_.clear();
  ForEachUsed(moe_.begin, [&](std::size_t e, std::int64_t first, std::int64_t rows) {
    const auto& gate = static_cast<const CpuMatrix&>(*task.gate[e]);
    const auto& up = static_cast<const CpuMatrix&>(*task.up[e]);
    GatedJob job = {gate.Args(),
                    up.Args(),
                    moe_.mid.get(),
                    first,
                    gate.num_panels(),
                    gate.PanelCost(rows) + up.PanelCost(rows)};
    moe_.in->SetInputs(first, rows, &job.gate);
    moe_.in->SetInputs(first, rows, &job.up);
    gated_jobs_.push_back(job);
  });
}

void CpuDevice::AddDownExperts(const MoeTask& task) {
  jobs_.clear();
  ForEachUsed(moe_.begin, [&](std::size_t e, std::int64_t first, std::int64_t rows) {
    const auto& matrix = static_cast<const CpuMatrix&>(*task.down[e]);
    PanelJob job = {matrix.Args(), matrix.num_panels(), matrix.PanelCost(rows)};
    moe_.mid->SetInputs(first, rows, &job.args);
    job.args.y = Floats(moe_.out) + first * moe_.hidden;
    job.args.ldy = moe_.hidden;
    jobs_.push_back(job);
  });
}

void CpuDevice::MoeBlock(const MoeTask& task, std::int64_t first_row, std::int64_t rows) {
  SortByExpert(task, first_row, rows);
  const std::int64_t hidden = moe_.hidden;
  const std::int64_t top_k = task.top_k;
  // Each row is quantised once, at its first place, and copied to the others.
  ForEach(rows, rows * hidden, [&](int, std::int64_t row) {
    std::int64_t source = -1;
    for (std::int64_t s = 0; s < top_k; ++s) {
      const std::int32_t place = moe_.slot_of[static_cast<std::size_t>(row * top_k + s)];
      if (place < 0) {
        continue;
      }
      if (source < 0) {
        source = place;
        moe_.in->Fill(place, 0, task.x + (first_row + row) * hidden, hidden);
      } else {
        moe_.in->CopyRow(*moe_.in, source, place);
      }
    }
  });
  AddGatedExperts(task);
  RunGatedJobs(task.gate_kind);
  AddDownExperts(task);
  RunJobs();
  ForEach(rows, rows * hidden * top_k, [&](int, std::int64_t row) {
    float* y = task.y + (first_row + row) * hidden;
    std::fill_n(y, hidden, 0.0f);
    for (std::int64_t s = 0; s < top_k; ++s) {
      const std::int32_t place = moe_.slot_of[static_cast<std::size_t>(row * top_k + s)];
      if (place >= 0) {
        kernels_.axpy(task.weight[(first_row + row) * top_k + s],
                      Floats(moe_.out) + place * hidden,
                      hidden,
                      y);
      }
    }
  });
}

void CpuDevice::Route(const RouteTask& task) { RouteTokens(task); }

void CpuDevice::Moe(const MoeTask& task) {
  if (task.rows == 0 || task.gate.empty()) {
    return;
  }
  const std::int64_t block = std::max<std::int64_t>(1, kMaxAssignments / task.top_k);
  ReserveMoe(task, std::min(task.rows, block) * task.top_k);
  for (std::int64_t row = 0; row < task.rows; row += block) {
    MoeBlock(task, row, std::min(block, task.rows - row));
  }
}

}  // namespace inferd::ops
