// SPDX-License-Identifier: Apache-2.0
// Operations made of others, for devices that have nothing better.
#include "ops/device.h"

namespace inferd::ops {

void Device::AddRmsNorm(const AddNormTask& task, Activations* act) {
  Add(task.x, task.add, task.rows, task.k);
  RmsNorm(task.x, task.weight, task.eps, task.rows, task.k, act);
}

void Device::AddRmsNormFloat(const AddNormTask& task, float* y) {
  Add(task.x, task.add, task.rows, task.k);
  RmsNormFloat(task.x, task.weight, task.eps, task.rows, task.k, y);
}

void Device::GatedMatMul(const Activations& in,
                         std::int64_t rows,
                         GateKind kind,
                         const std::array<MatMulTask, 2>& gate_up,
                         Activations* act) {
  MatMul(in, rows, gate_up);
  const auto& [gate, up] = gate_up;
  GateMul(kind, gate.y, up.y, gate.ldy, rows, gate.weight->n(), act);
}

}  // namespace inferd::ops
