// SPDX-License-Identifier: Apache-2.0
// Products of a CUDA device: by our kernels, or, from some rows on, by cuBLASLt. The library's
// tensor cores take both sides in the matrix' 16-bit type, so inputs become the sum of two such
// rows, as in our kernels, and their products are added up in y. A matrix whose columns have an
// order of their own gets its inputs in that order.
#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "kernels/matmul/inputs_cuda.h"
#include "ops/cuda/cuda_device.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

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
// of mantissa up to a million.
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

Result<> CudaDevice::ReserveProducts(const StepLimits& limits) {
  INFERD_ASSIGN(library_.least_rows, LeastRows());
  inputs_.piece_rows = std::min(limits.rows, kPieceRows);
  if (!limits.batch_invariant && inputs_.widest_split > 0 && library_.least_rows <= limits.rows) {
    if (const Result<CublasLtApi> api = LoadCublasLt(); api.ok()) {
      StartLibrary(*api);
    } else {
      log::Info("ops", "own kernels do all products of {}: {}", name_, api.error().message());
    }
  }
  const auto ordered_bytes =
      static_cast<std::size_t>(inputs_.piece_rows * inputs_.widest_ordered) * sizeof(float);
  if (inputs_.memory.bytes() < ordered_bytes) {
    INFERD_ASSIGN(inputs_.memory, Allocate(ordered_bytes, "inputs in the order of act-order"));
  }
  return error_ ? Result<>(*error_) : Result<>();
}

void CudaDevice::StartLibrary(const CublasLtApi& api) {
  const auto split_values = kTerms * TermStride(inputs_.piece_rows, inputs_.widest_split);
  const auto bytes = std::max(
      static_cast<std::size_t>(split_values) * sizeof(std::uint16_t),
      static_cast<std::size_t>(inputs_.piece_rows * inputs_.widest_ordered) * sizeof(float));
  const auto start = [&]() -> Result<> {
    INFERD_ASSIGN(Memory workspace, Allocate(CublasLt::kWorkspaceBytes, "cuBLASLt"));
    INFERD_ASSIGN(Memory memory, Allocate(bytes, "inputs of cuBLASLt"));
    INFERD_ASSIGN(library_.lt, CublasLt::Make(api, workspace.data()));
    library_.workspace = std::move(workspace);
    inputs_.memory = std::move(memory);
    return {};
  };
  if (Result<> started = start(); !started.ok()) {
    log::Warning("ops", "own kernels do all products: {}", started.error().message());
    return;
  }
  log::Info("ops",
            "{}: cuBLASLt {} does products of {} rows and more",
            name_,
            library_.lt->version(),
            library_.least_rows);
}

bool CudaDevice::MultiplyByLibrary(const CudaMatrix& weight,
                                   const float* x,
                                   std::int64_t rows,
                                   const MatMulTask& task) {
  const DType type = weight.type();
  if (library_.lt == nullptr || library_.failed || rows < library_.least_rows || !IsPlain(type)) {
    return false;
  }
  const bool splits = type != DType::kF32;
  LtProduct product;
  product.type = type;
  product.n = weight.n();
  product.k = weight.k();
  product.w = weight.data();
  product.ldx = splits ? RoundUp(weight.k(), kRowValues) : weight.k();
  product.terms = splits ? kTerms : 1;
  product.term_stride = TermStride(inputs_.piece_rows, weight.k());
  const float scale = type == DType::kF16 ? kHalfScale : 1.0F;
  product.alpha = 1.0F / scale;
  product.second_alpha = type == DType::kF16 ? 1.0F / k::kSecondHalf : 1.0F;
  product.bias = task.bias;
  product.ldy = task.ldy;
  const std::int64_t pieces = splits ? (rows + inputs_.piece_rows - 1) / inputs_.piece_rows : 1;
  const std::int64_t piece = (rows + pieces - 1) / pieces;
  for (std::int64_t first = 0; first < rows; first += piece) {
    product.m = std::min(piece, rows - first);
    product.x = x + first * weight.k();
    product.y = task.y + first * task.ldy;
    if (splits) {
      product.x = inputs_.memory.data();
      if (inputs_.split != type) {
        Check(k::SplitRows(type,
                           x + first * weight.k(),
                           weight.k(),
                           product.m,
                           weight.k(),
                           scale,
                           kTerms,
                           reinterpret_cast<std::uint16_t*>(inputs_.memory.data()),
                           product.ldx,
                           product.term_stride,
                           stream_),
              "converting the inputs of products");
        inputs_.split = pieces == 1 ? std::optional(type) : std::nullopt;
        inputs_.ordered = nullptr;
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

void CudaDevice::MultiplyInOrder(const CudaMatrix& weight,
                                 const float* x,
                                 std::int64_t rows,
                                 const MatMulTask& task) {
  const ColumnList& order = *weight.order();
  float* const ordered = inputs_.memory.floats();
  INFERD_CHECK_MSG(static_cast<std::size_t>(std::min(rows, inputs_.piece_rows) * weight.columns()) *
                           sizeof(float) <=
                       inputs_.memory.bytes(),
                   "matrices are packed before room for their inputs is reserved");
  for (std::int64_t first = 0; first < rows && Use(); first += inputs_.piece_rows) {
    const std::int64_t count = std::min(inputs_.piece_rows, rows - first);
    if (inputs_.ordered != &order) {
      Check(k::GatherColumns(x + first * order.k,
                             order.k,
                             reinterpret_cast<const std::int32_t*>(order.device.data()),
                             count,
                             weight.columns(),
                             ordered,
                             weight.columns(),
                             stream_),
            "putting inputs in order");
      inputs_.ordered = count == rows ? &order : nullptr;
      inputs_.split.reset();
    }
    Check(k::MatMul(weight.Args(),
                    ordered,
                    weight.columns(),
                    count,
                    task.bias,
                    false,
                    task.y + first * task.ldy,
                    task.ldy,
                    stream_),
          "a product with weights");
  }
}

void CudaDevice::MatMul(const Activations& act,
                        std::int64_t rows,
                        std::span<const MatMulTask> tasks) {
  const auto& x = static_cast<const CudaActivations&>(act);
  INFERD_CHECK(rows <= act.max_rows());
  inputs_.split.reset();
  inputs_.ordered = nullptr;
  for (const MatMulTask& task : tasks) {
    const auto& weight = static_cast<const CudaMatrix&>(*task.weight);
    INFERD_CHECK(act.k() == weight.k());
    if (weight.order() != nullptr) {
      MultiplyInOrder(weight, x.data(), rows, task);
    } else if (weight.form() != kActFloat) {
      MatMulBytes(x, rows, task);
    } else if (Use() && (task.alike || !MultiplyByLibrary(weight, x.data(), rows, task))) {
      Check(k::MatMul(
                weight.Args(), x.data(), x.k(), rows, task.bias, false, task.y, task.ldy, stream_),
            "a product with weights");
    }
  }
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
