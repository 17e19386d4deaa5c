// SPDX-License-Identifier: Apache-2.0
// Products with a matrix per head on the CPU device: the panels of one head's rows meet that head's
// inputs, all heads in one region.
#include "base/check.h"
#include "ops/cpu_device.h"
#include "ops/cpu_region.h"

#include <memory>

namespace inferd::ops {

void CpuDevice::HeadMatMul(const HeadTask& task) {
  if (task.rows == 0) {
    return;
  }
  const auto& weight = static_cast<const CpuMatrix&>(*task.weight);
  const std::int64_t n = weight.n() / task.heads;
  const std::int64_t k = weight.k();
  INFERD_CHECK(n * task.heads == weight.n() && n % kernels::kPanelRows == 0);
  const std::int64_t inputs = task.heads * task.rows;
  std::unique_ptr<CpuActivations>& in = head_in_[k];
  if (in == nullptr || in->max_rows() < inputs || in->forms() != weight.form()) {
    in = std::make_unique<CpuActivations>(inputs, k, weight.form(), kernels_);
  }
  // Head by head, so that a head's rows follow one another.
  ForEach(inputs, inputs * k, [&](int, std::int64_t i) {
    const float* x = task.x + i % task.rows * task.ldx + i / task.rows * task.x_head;
    in->Fill(i, 0, x, k);
  });
  jobs_.clear();
  const std::int64_t panels = n / kernels::kPanelRows;
  for (std::int64_t head = 0; head < task.heads; ++head) {
    PanelJob job = {weight.Args(), panels, weight.PanelCost(task.rows)};
    job.args.panels += static_cast<std::size_t>(head * panels) * weight.panel_bytes();
    job.args.n = n;
    in->SetInputs(head * task.rows, task.rows, &job.args);
    job.args.y = task.y + head * task.y_head;
    job.args.ldy = task.ldy;
    jobs_.push_back(job);
  }
  RunJobs();
}

}  // namespace inferd::ops
