// SPDX-License-Identifier: Apache-2.0
// Products whose results meet at a gate, on the CPU device. A thread makes some columns of both,
// for all rows, and gates them while they are in its second-level cache: of 512 rows of a layer of
// 896 x 4,864, 20 MB less go to memory and come back.
#include "base/check.h"
#include "ops/cpu_device.h"
#include "ops/cpu_region.h"

#include <algorithm>

namespace inferd::ops {
namespace {

// Floats of both products that a thread aims to hold at a time: half a second-level cache. Many
// columns at once suit the kernels, which share inputs among panels.
constexpr std::int64_t kGroupFloats = 128 * 1024;

std::int64_t PassRows(std::int64_t rows) {
  return std::min<std::int64_t>(rows, kernels::kMatMulRows);
}

// Panels of a group, at most: whole pairs, as borders of groups are rounded up to these.
std::int64_t MostPanels(std::int64_t rows) {
  constexpr std::int64_t kPairFloats = 2 * kernels::kPanelRows * kernels::kPanelPair;
  static_assert(kGroupFloats >= kPairFloats * kernels::kMatMulRows);
  return kGroupFloats / (kPairFloats * PassRows(rows)) * kernels::kPanelPair;
}

// Panels [first, first + panels) of a product, into y [m, panels * kPanelRows].
kernels::MatMulArgs PanelsOf(kernels::MatMulArgs args,
                             std::int64_t first,
                             std::int64_t panels,
                             float* y) {
  args.panels += static_cast<std::size_t>(first) * args.panel_bytes;
  args.n -= first * kernels::kPanelRows;
  if (args.bias != nullptr) {
    args.bias += first * kernels::kPanelRows;
  }
  args.first = 0;
  args.last = panels;
  args.y = y;
  args.ldy = panels * kernels::kPanelRows;
  return args;
}

}  // namespace

void CpuDevice::GatedMatMul(const Activations& in,
                            std::int64_t rows,
                            GateKind kind,
                            const std::array<MatMulTask, 2>& gate_up,
                            Activations* act) {
  if (rows == 0) {
    return;
  }
  if (&in == act) {  // which other columns still need
    return Device::GatedMatMul(in, rows, kind, gate_up, act);
  }
  const auto& gate = static_cast<const CpuMatrix&>(*gate_up[0].weight);
  const auto& up = static_cast<const CpuMatrix&>(*gate_up[1].weight);
  INFERD_CHECK(gate.n() == up.n() && gate.n() <= act->k() && rows <= act->max_rows());
  gated_jobs_.assign(1,
                     {ProductArgs(in, rows, gate_up[0]),
                      ProductArgs(in, rows, gate_up[1]),
                      static_cast<CpuActivations*>(act),
                      0,
                      gate.num_panels(),
                      gate.PanelCost(rows) + up.PanelCost(rows)});
  RunGatedJobs(kind);
}

void CpuDevice::RunGatedJobs(GateKind kind) {
  std::int64_t floats = 0;
  for (const GatedJob& job : gated_jobs_) {
    const std::int64_t panels = std::min(MostPanels(job.gate.m), job.num_panels);
    floats = std::max(floats, 2 * PassRows(job.gate.m) * panels * kernels::kPanelRows);
  }
  for (std::vector<float>& scratch : gated_scratch_) {
    if (static_cast<std::int64_t>(scratch.size()) < floats) {
      scratch.resize(static_cast<std::size_t>(floats));
    }
  }
  ForEachShare(std::span<const GatedJob>(gated_jobs_),
               [&](int thread, const GatedJob& job, std::int64_t first, std::int64_t last) {
                 RunGated(job, KernelGate(kind), first, last, thread);
               });
}

void CpuDevice::RunGated(
    const GatedJob& job, kernels::Gate kind, std::int64_t first, std::int64_t last, int thread) {
  const int unit = job.PanelUnit();
  const std::int64_t most = MostPanels(job.gate.m);
  const std::int64_t groups = (last - first + most - 1) / most;
  const auto border = [&](std::int64_t group) {
    const std::int64_t at = (last - first) * group / groups;
    return std::min(last, first + (at + unit - 1) / unit * unit);
  };
  float* const gate = gated_scratch_[static_cast<std::size_t>(thread)].data();
  for (std::int64_t row = 0; row < job.gate.m; row += kernels::kMatMulRows) {
    const std::int64_t rows = PassRows(job.gate.m - row);
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t panel = border(group);
      const std::int64_t panels = border(group + 1) - panel;
      const std::int64_t columns = panels * kernels::kPanelRows;
      float* const up = gate + rows * columns;
      for (auto [args, y] : {std::pair(&job.gate, gate), std::pair(&job.up, up)}) {
        kernels::MatMulArgs part = PanelsOf(kernels::RowsOf(*args, row, rows), panel, panels, y);
        part.scratch = Scratch(thread);
        kernels_.matmul(part);
      }
      const std::int64_t column = panel * kernels::kPanelRows;
      const std::int64_t count = std::min(columns, job.gate.n - column);
      for (std::int64_t r = 0; r < rows; ++r) {
        float* const values = gate + r * columns;
        kernels_.gate_mul(kind, values, up + r * columns, count, values);
        job.out->Fill(job.out_row + row + r, column, values, count);
      }
    }
  }
}

}  // namespace inferd::ops
