// SPDX-License-Identifier: Apache-2.0
// The row operations of a CUDA device.
#include "base/check.h"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/rows/gated_cuda.h"
#include "kernels/rows/quantised_rows_cuda.h"
#include "kernels/rows/rows_cuda.h"
#include "ops/cuda/cuda_device.h"

namespace inferd::ops::INFERD_CUDA_NAMESPACE {
namespace {

namespace k = kernels::cuda;

static_assert(kDrawnId == k::kDrawnId);

kernels::Gate KernelGate(GateKind kind) {
  switch (kind) {
    case GateKind::kSilu:
      return kernels::Gate::kSilu;
    case GateKind::kGeluTanh:
      return kernels::Gate::kGeluTanh;
    case GateKind::kGelu:
      return kernels::Gate::kGelu;
  }
  return kernels::Gate::kSilu;
}

}  // namespace

void CudaDevice::Embed(DType type,
                       const std::byte* table,
                       std::int64_t table_rows,
                       std::int64_t first_id,
                       std::span<const std::int32_t> ids,
                       std::int64_t hidden,
                       float scale,
                       float* x) {
  const bool of_step = !ids.empty() && ids.data() == step_.host.ids.data();
  const std::int32_t* const device_ids = of_step ? step_.ids : Stage(ids);
  const std::int64_t rows = of_step ? step_.rows.rows : static_cast<std::int64_t>(ids.size());
  if (device_ids != nullptr && Use()) {
    Check(k::Embed(type,
                   table,
                   table_rows,
                   first_id,
                   device_ids,
                   of_step ? step_.host.drawn : nullptr,
                   rows,
                   hidden,
                   scale,
                   x,
                   hidden,
                   stream_),
          "embedding");
  }
}

void CudaDevice::RmsNorm(const float* x,
                         const float* weight,
                         float eps,
                         std::int64_t rows,
                         std::int64_t width,
                         Activations* act) {
  const auto& to = static_cast<const CudaActivations&>(*act);
  if (!to.HasBytes()) {
    RmsNormFloat(x, weight, eps, rows, width, to.data());
  } else if (Use()) {
    // Without a residual x is only read.
    Check(k::RmsNormQuantised(const_cast<float*>(x),
                              width,
                              nullptr,
                              0,
                              weight,
                              eps,
                              rows,
                              width,
                              to.Bytes(true),
                              stream_),
          "RMS norm");
    to.set_byte_rows(rows);
  }
}

void CudaDevice::RmsNormFloat(const float* x,
                              const float* weight,
                              float eps,
                              std::int64_t rows,
                              std::int64_t width,
                              float* y) {
  if (Use()) {
    Check(k::RmsNorm(x, width, weight, eps, rows, width, y, width, stream_), "RMS norm");
  }
}

void CudaDevice::AddRmsNorm(const AddNormTask& task, Activations* act) {
  const auto& to = static_cast<const CudaActivations&>(*act);
  const std::int64_t width = task.k;
  if (!to.HasBytes()) {
    AddRmsNormFloat(task, to.data());
  } else if (Use()) {
    Check(k::RmsNormQuantised(task.x,
                              width,
                              task.add,
                              width,
                              task.weight,
                              task.eps,
                              task.rows,
                              width,
                              to.Bytes(true),
                              stream_),
          "adding and RMS norm");
    to.set_byte_rows(task.rows);
  }
}

void CudaDevice::AddRmsNormFloat(const AddNormTask& task, float* y) {
  const std::int64_t k = task.k;
  if (Use()) {
    Check(k::AddRmsNorm(task.x, k, task.add, k, task.weight, task.eps, task.rows, k, y, k, stream_),
          "adding and RMS norm");
  }
}

void CudaDevice::Quantize(const float* x, std::int64_t ldx, std::int64_t rows, Activations* act) {
  const auto& to = static_cast<const CudaActivations&>(*act);
  const auto width = static_cast<std::size_t>(act->k()) * sizeof(float);
  if (!to.HasBytes()) {
    CopyRows(to.data(), width, x, static_cast<std::size_t>(ldx) * sizeof(float), width, rows);
  } else if (Use()) {
    Check(k::QuantiseRows(x, ldx, rows, act->k(), to.Bytes(true), stream_), "quantising rows");
    to.set_byte_rows(rows);
  }
}

void CudaDevice::GateMul(GateKind kind,
                         const float* gate,
                         const float* up,
                         std::int64_t ld,
                         std::int64_t rows,
                         std::int64_t ffn,
                         Activations* act) {
  const auto& to = static_cast<const CudaActivations&>(*act);
  if (!Use()) {
    return;
  }
  const kernels::Gate gates = KernelGate(kind);
  if (to.HasBytes()) {
    Check(k::GateMulQuantised(gates, gate, up, ld, rows, ffn, to.Bytes(true), stream_), "gating");
    to.set_byte_rows(rows);
  } else {
    Check(k::GateMul(gates, gate, up, ld, rows, ffn, to.data(), ffn, stream_), "gating");
  }
}

void CudaDevice::Add(float* x, const float* y, std::int64_t rows, std::int64_t n) {
  if (Use()) {
    Check(k::Add(x, n, y, n, rows, n, stream_), "adding");
  }
}

void CudaDevice::AddGated(
    float* y, const float* x, const float* gate, std::int64_t rows, std::int64_t n) {
  if (gate == nullptr) {
    Add(y, x, rows, n);
  } else if (Use()) {
    Check(k::AddGated(y, n, x, n, gate, rows, n, stream_), "adding a gated expert");
  }
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
