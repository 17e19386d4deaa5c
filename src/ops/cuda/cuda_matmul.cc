// SPDX-License-Identifier: Apache-2.0
// Products of a CUDA device: by our kernels, or, from some rows on, by cuBLASLt. The library's
// tensor cores take both sides in the matrix' 16-bit type, so inputs become the sum of two such
// rows, as in our kernels, and their products are added up in y.
#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "kernels/matmul/inputs_cuda.h"
#include "ops/cuda/cuda_device.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {
namespace {

namespace k = kernels::cuda;

constexpr const char* kRowsSetting = "INFERD_CUBLASLT_ROWS";
// Below, the weights' bytes are what takes the time, and our kernels read each once.
constexpr std::int64_t kLeastRows = 65;
// Bounds the memory of the converted inputs; enough rows to fill any device.
constexpr std::int64_t kPieceRows = 2048;
constexpr int kTerms = 2;
// F16 ends at 65504, which inputs may exceed; two terms of what is a sixteenth of them hold 22 bits
// of mantissa up to a million, and 2^-21 of what is below.
constexpr float kHalfScale = 0x1p-4F;
// Rows of converted inputs begin at multiples of 16 bytes, terms at multiples of 256.
constexpr std::int64_t kRowValues = 8, kTermValues = 128;

std::int64_t RoundUp(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

bool IsPlain(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

std::int64_t TermStride(std::int64_t rows, std::int64_t columns) {
  return RoundUp(rows * RoundUp(columns, kRowValues), kTermValues);
}

Result<std::int64_t> LeastRows() {
  const char* const set = std::getenv(kRowsSetting);
  if (set == nullptr) {
    return kLeastRows;
  }
  const std::string_view text(set);
  std::int64_t rows = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rows);
  if (error != std::errc() || end != text.data() + text.size() || rows < 0) {
    return InvalidArgument(
        "{} is '{}'; give the rows from which on cuBLASLt multiplies, or 0 for never",
        kRowsSetting,
        text);
  }
  return rows > 0 ? rows : std::numeric_limits<std::int64_t>::max();
}

}  // namespace

std::string CudaDevice::Describe() const {
  return library_.lt == nullptr ? name_
                                : fmt::format("{}, cuBLASLt {}", name_, library_.lt->version());
}

Result<> CudaDevice::ReserveLibrary(const StepLimits& limits) {
  INFERD_ASSIGN(library_.least_rows, LeastRows());
  if (limits.batch_invariant || library_.widest == 0 || library_.least_rows > limits.rows) {
    return {};
  }
  const Result<CublasLtApi> api = LoadCublasLt();
  if (!api.ok()) {
    log::Info("ops", "own kernels do all products of {}: {}", name_, api.error().message());
    return {};
  }
  library_.piece_rows = std::min(limits.rows, kPieceRows);
  const std::int64_t values = kTerms * TermStride(library_.piece_rows, library_.widest);
  Result<Memory> workspace = Allocate(CublasLt::kWorkspaceBytes, "cuBLASLt");
  Result<Memory> inputs =
      Allocate(static_cast<std::size_t>(values) * sizeof(std::uint16_t), "inputs of cuBLASLt");
  if (error_) {
    return *error_;
  }
  if (!workspace.ok() || !inputs.ok()) {
    const Error& why = workspace.ok() ? inputs.error() : workspace.error();
    log::Warning("ops", "own kernels do all products: {}", why.message());
    return {};
  }
  Result<std::unique_ptr<CublasLt>> made = CublasLt::Make(*api, workspace->data());
  if (!made.ok()) {
    log::Warning("ops", "own kernels do all products of {}: {}", name_, made.error().message());
    return {};
  }
  library_.workspace = *std::move(workspace);
  library_.inputs = *std::move(inputs);
  library_.lt = *std::move(made);
  log::Info("ops",
            "{}: cuBLASLt {} does products of {} rows and more",
            name_,
            library_.lt->version(),
            library_.least_rows);
  return {};
}

bool CudaDevice::MultiplyByLibrary(const CudaMatrix& weight,
                                   const float* x,
                                   std::int64_t rows,
                                   const MatMulTask& task) {
  const DType type = weight.type();
  if (library_.lt == nullptr || library_.failed || rows < library_.least_rows || !IsPlain(type)) {
    return false;
  }
  const bool converts = type != DType::kF32;
  LtProduct product;
  product.type = type;
  product.n = weight.n();
  product.k = weight.k();
  product.w = weight.data();
  product.ldx = converts ? RoundUp(weight.k(), kRowValues) : weight.k();
  product.terms = converts ? kTerms : 1;
  product.term_stride = TermStride(library_.piece_rows, weight.k());
  const float scale = type == DType::kF16 ? kHalfScale : 1.0F;
  product.alpha = 1.0F / scale;
  product.bias = task.bias;
  product.ldy = task.ldy;
  const std::int64_t pieces = converts ? (rows + library_.piece_rows - 1) / library_.piece_rows : 1;
  const std::int64_t piece = (rows + pieces - 1) / pieces;
  for (std::int64_t first = 0; first < rows; first += piece) {
    product.m = std::min(piece, rows - first);
    product.x = x + first * weight.k();
    product.y = task.y + first * task.ldy;
    if (converts) {
      product.x = library_.inputs.data();
      if (library_.held != type) {
        Check(k::SplitRows(type,
                           x + first * weight.k(),
                           weight.k(),
                           product.m,
                           weight.k(),
                           scale,
                           kTerms,
                           reinterpret_cast<std::uint16_t*>(library_.inputs.data()),
                           product.ldx,
                           product.term_stride,
                           stream_),
              "converting the inputs of products");
        library_.held = pieces == 1 ? type : DType::kF32;
      }
    }
    const Result<bool> done = library_.lt->Multiply(product, stream_, !recording_);
    if (!done.ok()) {
      library_.failed = true;
      log::Warning(
          "ops", "{}: own kernels do all products from now on: {}", name_, done.error().message());
    }
    if (!done.ok() || !*done) {
      return false;
    }
  }
  return true;
}

void CudaDevice::MatMul(const Activations& act,
                        std::int64_t rows,
                        std::span<const MatMulTask> tasks) {
  const auto& x = static_cast<const CudaActivations&>(act);
  INFERD_CHECK(rows <= act.max_rows());
  library_.held = DType::kF32;
  for (const MatMulTask& task : tasks) {
    const auto& weight = static_cast<const CudaMatrix&>(*task.weight);
    INFERD_CHECK(act.k() == weight.k());
    if (Use() && !MultiplyByLibrary(weight, x.data(), rows, task)) {
      Check(k::MatMul(
                weight.Args(), x.data(), x.k(), rows, task.bias, false, task.y, task.ldy, stream_),
            "a product with weights");
    }
  }
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
