// SPDX-License-Identifier: Apache-2.0
// The row operations of the CPU device, its products and its construction.
#include "ops/cpu_device.h"

#include "base/check.h"
#include "base/error.h"
#include "kernels/dequant/dequant.h"
#include "ops/cpu_region.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace inferd::ops {
namespace {

// Columns a thread takes at a time of wide rows; a multiple of 32.
constexpr std::int64_t kSpan = 1024;

CpuActivations* Cpu(Activations* act) { return static_cast<CpuActivations*>(act); }

}  // namespace

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

CpuDevice::CpuDevice(const kernels::KernelTable& kernels, std::unique_ptr<ThreadTeam> team)
    : kernels_(kernels),
      team_(std::move(team)),
      shares_(team_->size()),
      row_scratch_(static_cast<std::size_t>(team_->size())),
      gated_scratch_(static_cast<std::size_t>(team_->size())) {
  for (int i = 0; i < team_->size(); ++i) {
    Result<tensor::HostBuffer> scratch = tensor::HostBuffer::Allocate(kernels::kMatMulScratch);
    INFERD_CHECK_MSG(scratch.ok(), "scratch of a compute thread");
    scratch_.push_back(std::move(scratch).value());
  }
}

std::string CpuDevice::Describe() const {
  return fmt::format(
      "cpu {}, {} thread{}", kernels_.name, team_->size(), team_->size() == 1 ? "" : "s");
}

Result<Memory> CpuDevice::Allocate(std::size_t bytes, std::string_view what) {
  return AllocateHostMemory(bytes, what);
}

Result<Memory> CpuDevice::AllocateHost(std::size_t bytes, std::string_view what) {
  return AllocateHostMemory(bytes, what);
}

void CpuDevice::CopyRows(void* to,
                         std::size_t to_stride,
                         const void* from,
                         std::size_t from_stride,
                         std::size_t bytes,
                         std::int64_t rows) {
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  for (std::int64_t row = 0; row < rows; ++row, out += to_stride, in += from_stride) {
    std::memcpy(out, in, bytes);
  }
}

void CpuDevice::Zero(void* at, std::size_t bytes) { std::memset(at, 0, bytes); }

void CpuDevice::ZeroPages(std::byte* base,
                          std::size_t page_bytes,
                          std::span<const std::int32_t> pages) {
  const auto values = static_cast<std::int64_t>(pages.size() * page_bytes / sizeof(float));
  ForEach(static_cast<std::int64_t>(pages.size()), values, [&](int, std::int64_t i) {
    const auto page = static_cast<std::size_t>(pages[static_cast<std::size_t>(i)]);
    std::memset(base + page * page_bytes, 0, page_bytes);
  });
}

Result<EmbeddingTable> CpuDevice::MakeTable(DType type,
                                            std::span<const std::byte> rows,
                                            std::int64_t,
                                            std::int64_t) {
  return EmbeddingTable{type, rows.data(), {}};
}

void CpuDevice::ReserveRows(std::int64_t k) {
  for (std::vector<float>& row : row_scratch_) {
    if (row.size() < static_cast<std::size_t>(k)) {
      row.resize(static_cast<std::size_t>(k));
    }
  }
}

void CpuDevice::Embed(DType type,
                      const std::byte* table,
                      std::int64_t table_rows,
                      std::int64_t first_id,
                      std::span<const std::int32_t> ids,
                      std::int64_t hidden,
                      float scale,
                      float* x) {
  const std::int64_t row_bytes = hidden / BlockElements(type) * BlockBytes(type);
  const auto count = static_cast<std::int64_t>(ids.size());
  ForEach(count, count * hidden * 4, [&](int, std::int64_t i) {
    float* y = x + i * hidden;
    const std::int64_t row = ids[static_cast<std::size_t>(i)] - first_id;
    if (row < 0 || row >= table_rows) {
      std::fill_n(y, hidden, 0.0f);
      return;
    }
    kernels::DequantRow(type, table + row * row_bytes, hidden, y);
    if (scale != 1.0f) {
      for (std::int64_t c = 0; c < hidden; ++c) {
        y[c] *= scale;
      }
    }
  });
}

void CpuDevice::RmsNorm(const float* x,
                        const float* weight,
                        float eps,
                        std::int64_t rows,
                        std::int64_t k,
                        Activations* act) {
  ReserveRows(k);
  ForEach(rows, rows * k, [&](int thread, std::int64_t row) {
    float* y = row_scratch_[static_cast<std::size_t>(thread)].data();
    kernels_.rms_norm(x + row * k, weight, eps, k, y);
    Cpu(act)->Fill(row, 0, y, k);
  });
}

void CpuDevice::RmsNormFloat(
    const float* x, const float* weight, float eps, std::int64_t rows, std::int64_t k, float* y) {
  ForEach(rows, rows * k, [&](int, std::int64_t row) {
    kernels_.rms_norm(x + row * k, weight, eps, k, y + row * k);
  });
}

void CpuDevice::Quantize(const float* x, std::int64_t ldx, std::int64_t rows, Activations* act) {
  const std::int64_t k = act->k();
  const std::int64_t spans = (k + kSpan - 1) / kSpan;
  ForEach(rows * spans, rows * k, [&](int, std::int64_t unit) {
    const std::int64_t row = unit / spans;
    const std::int64_t column = unit % spans * kSpan;
    Cpu(act)->Fill(row, column, x + row * ldx + column, std::min(kSpan, k - column));
  });
}

void CpuDevice::GateMul(GateKind kind,
                        const float* gate,
                        const float* up,
                        std::int64_t ld,
                        std::int64_t rows,
                        std::int64_t ffn,
                        Activations* act) {
  const std::int64_t spans = (ffn + kSpan - 1) / kSpan;
  // An exponential per value: worth a region sooner than a copy.
  ForEach(rows * spans, rows * ffn * 4, [&](int, std::int64_t unit) {
    float y[kSpan];
    const std::int64_t row = unit / spans;
    const std::int64_t column = unit % spans * kSpan;
    const std::int64_t count = std::min(kSpan, ffn - column);
    const std::int64_t at = row * ld + column;
    kernels_.gate_mul(KernelGate(kind), gate + at, up + at, count, y);
    Cpu(act)->Fill(row, column, y, count);
  });
}

void CpuDevice::Add(float* x, const float* y, std::int64_t rows, std::int64_t n) {
  ForEach(
      rows, rows * n, [&](int, std::int64_t row) { kernels_.add(x + row * n, y + row * n, n); });
}

void CpuDevice::AddGated(
    float* y, const float* x, const float* gate, std::int64_t rows, std::int64_t n) {
  ForEach(rows, rows * n, [&](int, std::int64_t row) {
    const float factor = gate != nullptr ? 1.0F / (1.0F + std::exp(-gate[row])) : 1.0F;
    for (std::int64_t i = row * n; i < (row + 1) * n; ++i) {
      y[i] += factor * x[i];
    }
  });
}

kernels::MatMulArgs CpuDevice::ProductArgs(const Activations& act,
                                           std::int64_t rows,
                                           const MatMulTask& task) {
  const auto& matrix = static_cast<const CpuMatrix&>(*task.weight);
  const auto& in = static_cast<const CpuActivations&>(act);
  INFERD_CHECK((in.forms() & matrix.form()) != 0);
  INFERD_CHECK(act.k() == matrix.k() && rows <= act.max_rows());
  kernels::MatMulArgs args = matrix.Args();
  in.SetInputs(0, rows, &args);
  args.y = task.y;
  args.ldy = task.ldy;
  args.bias = task.bias;
  return args;
}

void CpuDevice::MatMul(const Activations& act,
                       std::int64_t rows,
                       std::span<const MatMulTask> tasks) {
  if (rows == 0) {
    return;
  }
  jobs_.clear();
  for (const MatMulTask& task : tasks) {
    const auto& matrix = static_cast<const CpuMatrix&>(*task.weight);
    jobs_.push_back({ProductArgs(act, rows, task), matrix.num_panels(), matrix.PanelCost(rows)});
  }
  RunJobs();
}

void CpuDevice::RunJobs() {
  ForEachShare(std::span<const PanelJob>(jobs_),
               [&](int thread, const PanelJob& job, std::int64_t first, std::int64_t last) {
                 kernels::MatMulArgs args = job.args;
                 args.first = first;
                 args.last = last;
                 args.scratch = Scratch(thread);
                 kernels_.matmul(args);
               });
}

void CpuDevice::Softcap(float* x, float cap, std::int64_t count) {
  constexpr std::int64_t kPiece = 4096;
  ForEach((count + kPiece - 1) / kPiece, count * 32, [&](int, std::int64_t piece) {
    const std::int64_t end = std::min(count, (piece + 1) * kPiece);
    for (std::int64_t i = piece * kPiece; i < end; ++i) {
      x[i] = cap * std::tanh(x[i] / cap);
    }
  });
}

void CpuDevice::ParallelFor(std::int64_t count,
                            void* context,
                            void (*fn)(void* context, std::int64_t index)) {
  team_->ForEach(count, context, fn);
}

namespace {

Result<const kernels::KernelTable*> ChooseKernels(std::string_view isa, bool bf16_dot) {
  if (const char* forced = std::getenv("INFERD_CPU_ISA"); isa == "auto" && forced != nullptr) {
    isa = forced;
  }
  if (bf16_dot && !kernels::CpuHasAvx512Bf16()) {
    return FailedPrecondition(
        "this CPU lacks AVX512_BF16, so it cannot compute in bfloat16: use --dtype float32 (on "
        "every "
        "host of a group, as they compute alike)");
  }
  if (isa == "scalar") {
    return &kernels::ScalarKernels();
  }
  if (isa == "avx512" || (isa == "auto" && kernels::CpuHasAvx512())) {
    if (!kernels::CpuHasAvx512()) {
      return FailedPrecondition("this CPU lacks AVX-512 with VNNI, VBMI or GFNI: use auto");
    }
    return bf16_dot ? &kernels::Avx512Bf16Kernels() : &kernels::Avx512Kernels();
  }
  if (isa == "avx2" || (isa == "auto" && kernels::CpuHasAvx2())) {
    if (!kernels::CpuHasAvx2()) {
      return FailedPrecondition("this CPU lacks AVX2, FMA or BMI2: use auto");
    }
    return &kernels::Avx2Kernels();
  }
  if (isa == "auto") {
    return &kernels::ScalarKernels();
  }
  return InvalidArgument("unknown instruction set '{}': use auto, scalar, avx2 or avx512", isa);
}

}  // namespace

bool HasFastBf16() { return kernels::CpuHasFastBf16(); }

Result<std::unique_ptr<Device>> MakeCpuDevice(const CpuOptions& options) {
  INFERD_ASSIGN(const kernels::KernelTable* kernels, ChooseKernels(options.isa, options.bf16_dot));
  INFERD_ASSIGN(std::unique_ptr<ThreadTeam> team, ThreadTeam::Make(options.threads, options.cpus));
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>(*kernels, std::move(team)));
}

}  // namespace inferd::ops
