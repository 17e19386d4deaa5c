// SPDX-License-Identifier: Apache-2.0
// Weights of a CUDA device: from host rows through pinned memory to where the kernels read them.
#include "base/check.h"
#include "base/error.h"
#include "kernels/dequant/dequant.h"
#include "kernels/matmul/matmul_w8a8_cuda.h"
#include "kernels/types.h"
#include "ops/cuda/cuda_device.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {
namespace {

namespace k = kernels::cuda;

constexpr std::size_t kUploadBytes = 8U << 20U;

bool IsFloat(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

// What a type without a kernel becomes. MXFP4 spans more than F16 can and is exact in BF16; all
// others have at most 10 bits of mantissa to keep.
DType DequantisedType(DType type) { return type == DType::kMXFP4 ? DType::kBF16 : DType::kF16; }

std::size_t RowBytes(DType type, std::int64_t columns) {
  return static_cast<std::size_t>(columns / BlockElements(type) * BlockBytes(type));
}

template <class F>
void ForRows(ThreadTeam* team, std::int64_t rows, F&& body) {
  team->ForEach(rows, &body, [](void* context, std::int64_t row) {
    (*static_cast<std::remove_reference_t<F>*>(context))(row);
  });
}

}  // namespace

Result<> CudaDevice::Upload(std::byte* to,
                            const std::byte* from,
                            std::size_t stride,
                            std::size_t bytes,
                            std::int64_t rows) {
  for (Memory& half : upload_) {
    if (half.bytes() == 0) {
      INFERD_ASSIGN(half, AllocateHost(kUploadBytes, "uploading weights"));
    }
  }
  // While one half travels the other is filled. The stream is waited for before a half is used
  // again, by the event that follows its copy.
  std::array<cudaEvent_t, 2> sent{};
  for (cudaEvent_t& event : sent) {
    Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  }
  const std::size_t total = bytes * static_cast<std::size_t>(rows);
  std::size_t turn = 0;
  Result<> waited;
  for (std::size_t done = 0; done < total && Use(); ++turn) {
    Memory& half = upload_[turn % 2];
    if (turn >= 2) {
      waited = Conclude(queue_.WaitFor(sent[turn % 2]));
      if (!waited.ok()) {
        break;
      }
    }
    const std::size_t piece = std::min(total - done, half.bytes());
    for (std::size_t filled = 0; filled < piece;) {
      const std::size_t row = (done + filled) / bytes;
      const std::size_t column = (done + filled) % bytes;
      const std::size_t run = std::min(piece - filled, bytes - column);
      std::memcpy(half.data() + filled, from + row * stride + column, run);
      filled += run;
    }
    Check(cudaMemcpyAsync(to + done, half.data(), piece, cudaMemcpyHostToDevice, stream_),
          "uploading weights");
    Check(cudaEventRecord(sent[turn % 2], stream_), "uploading weights");
    done += piece;
  }
  if (waited.ok()) {
    waited = Wait();
  }
  for (const cudaEvent_t event : sent) {
    (void)cudaEventDestroy(event);
  }
  return waited;
}

Result<Memory> CudaDevice::UploadRows(std::span<const std::byte> rows,
                                      std::size_t stride,
                                      std::size_t bytes,
                                      std::int64_t n,
                                      std::string_view what) {
  INFERD_ASSIGN(Memory memory, Allocate(bytes * static_cast<std::size_t>(n), what));
  INFERD_TRY(Upload(memory.data(), rows.data(), stride, bytes, n));
  return memory;
}

Result<Memory> CudaDevice::UploadAsFloat16(DType type,
                                           DType target,
                                           std::span<const std::byte> rows,
                                           std::size_t stride,
                                           std::int64_t n,
                                           std::int64_t columns) {
  const std::size_t bytes = RowBytes(target, columns);
  INFERD_ASSIGN(Memory memory,
                Allocate(bytes * static_cast<std::size_t>(n), "dequantised weights"));
  const std::int64_t block =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(kUploadBytes / bytes));
  std::vector<std::uint16_t> values(static_cast<std::size_t>(std::min(n, block) * columns));
  for (std::int64_t first = 0; first < n; first += block) {
    const std::int64_t count = std::min(block, n - first);
    ForRows(team_.get(), count, [&](std::int64_t row) {
      std::vector<float> floats(static_cast<std::size_t>(columns));
      const std::byte* from = rows.data() + static_cast<std::size_t>(first + row) * stride;
      kernels::DequantRow(type, from, columns, floats.data());
      std::uint16_t* to = values.data() + row * columns;
      for (std::int64_t i = 0; i < columns; ++i) {
        const float value = floats[static_cast<std::size_t>(i)];
        to[i] = target == DType::kF16 ? kernels::FloatToHalf(value) : kernels::FloatToBf16(value);
      }
    });
    INFERD_TRY(Upload(memory.data() + static_cast<std::size_t>(first) * bytes,
                      reinterpret_cast<const std::byte*>(values.data()),
                      bytes,
                      bytes,
                      count));
  }
  return memory;
}

std::int64_t CudaDevice::FirstBadRow(DType type,
                                     std::span<const std::byte> rows,
                                     std::size_t stride,
                                     std::int64_t n,
                                     std::int64_t columns) {
  std::atomic<std::int64_t> bad{n};
  ForRows(team_.get(), n, [&](std::int64_t row) {
    std::vector<float> values(static_cast<std::size_t>(columns));
    kernels::DequantRow(
        type, rows.data() + static_cast<std::size_t>(row) * stride, columns, values.data());
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
      std::int64_t seen = bad.load();
      while (row < seen && !bad.compare_exchange_weak(seen, row)) {
      }
    }
  });
  return bad.load();
}

Result<std::shared_ptr<const ColumnList>> CudaDevice::ListColumns(const ColumnOrder& order,
                                                                  std::int64_t columns) {
  if (order.inputs.empty()) {
    return std::shared_ptr<const ColumnList>();
  }
  const bool fits = static_cast<std::int64_t>(order.inputs.size()) == columns &&
                    std::all_of(order.inputs.begin(),
                                order.inputs.end(),
                                [&order](std::int32_t input) { return input < order.k; });
  INFERD_CHECK_MSG(fits, "every stored column meets an input or none");
  for (const auto& list : column_lists_) {
    if (list->k == order.k &&
        std::equal(
            list->inputs.begin(), list->inputs.end(), order.inputs.begin(), order.inputs.end())) {
      return list;
    }
  }
  auto list = std::make_shared<ColumnList>();
  list->inputs.assign(order.inputs.begin(), order.inputs.end());
  list->k = order.k;
  const auto bytes = std::as_bytes(order.inputs);
  INFERD_ASSIGN(list->device, UploadRows(bytes, bytes.size(), bytes.size(), 1, "column orders"));
  column_lists_.push_back(list);
  return std::shared_ptr<const ColumnList>(std::move(list));
}

Result<std::unique_ptr<PackedMatrix>> CudaDevice::Pack(DType type,
                                                       std::span<const std::byte> rows,
                                                       std::int64_t n,
                                                       std::int64_t columns,
                                                       std::size_t row_bytes,
                                                       const MatrixScales& scales,
                                                       const ColumnOrder& order) {
  if (columns % BlockElements(type) != 0) {
    return InvalidArgument("{} columns are no multiple of the {} values of a {} block",
                           columns,
                           BlockElements(type),
                           DTypeName(type));
  }
  const std::size_t bytes = RowBytes(type, columns);
  if (n < 1 || columns < 1 || row_bytes < bytes || rows.size() < bytes ||
      (rows.size() - bytes) / row_bytes < static_cast<std::size_t>(n - 1)) {
    return InvalidArgument(
        "{} rows of {} bytes need more than the {} bytes given", n, row_bytes, rows.size());
  }
  if (!IsFloat(type) && type != DType::kI8) {
    if (const std::int64_t bad = FirstBadRow(type, rows, row_bytes, n, columns); bad < n) {
      return InvalidArgument(
          "row {} holds Inf or NaN: the weights are damaged or were converted wrongly", bad);
    }
  }
  Memory row_scales;
  if (!scales.values.empty()) {
    const std::int64_t groups = (columns + scales.group_columns - 1) / scales.group_columns;
    INFERD_CHECK((type == DType::kF8E4M3 || type == DType::kI8) &&
                 scales.values.size() == static_cast<std::size_t>(n * groups) &&
                 (!scales.by_token || groups == 1));
    const auto bad = std::find_if_not(
        scales.values.begin(), scales.values.end(), [](float v) { return std::isfinite(v); });
    if (bad != scales.values.end()) {
      return InvalidArgument(
          "row {} has Inf or NaN for a scale: the weights are damaged or were converted wrongly",
          (bad - scales.values.begin()) / groups);
    }
    const auto all = std::as_bytes(scales.values);
    INFERD_ASSIGN(row_scales, UploadRows(all, all.size(), all.size(), 1, "scales"));
  }
  INFERD_ASSIGN(std::shared_ptr<const ColumnList> list, ListColumns(order, columns));
  if (list != nullptr) {
    inputs_.widest_ordered = std::max(inputs_.widest_ordered, columns);
  } else if (IsFloat(type)) {
    inputs_.widest_split = std::max(inputs_.widest_split, columns);
  }
  if (k::HasMatMul(type)) {
    INFERD_ASSIGN(Memory data, UploadRows(rows, row_bytes, bytes, n, "weights"));
    const bool fits = type == DType::kF8E4M3 || columns <= k::MatMulW8A8Args::kMostInt8Columns;
    const ActForm form = !scales.by_token || !fits ? kActFloat
                         : type == DType::kF8E4M3  ? kActRowFp8
                                                   : kActRowInt8;
    return std::unique_ptr<PackedMatrix>(std::make_unique<CudaMatrix>(type,
                                                                      n,
                                                                      columns,
                                                                      std::move(data),
                                                                      std::move(row_scales),
                                                                      scales.group_columns,
                                                                      list,
                                                                      form));
  }
  const DType target = DequantisedType(type);
  INFERD_ASSIGN(Memory data, UploadAsFloat16(type, target, rows, row_bytes, n, columns));
  return std::unique_ptr<PackedMatrix>(
      std::make_unique<CudaMatrix>(target, n, columns, std::move(data), Memory(), 0, list));
}

Result<EmbeddingTable> CudaDevice::MakeTable(DType type,
                                             std::span<const std::byte> rows,
                                             std::int64_t n,
                                             std::int64_t columns) {
  const std::size_t bytes = RowBytes(type, columns);
  EmbeddingTable table;
  if (IsFloat(type)) {
    table.type = type;
    INFERD_ASSIGN(table.copy, UploadRows(rows, bytes, bytes, n, "the embedding"));
  } else {
    table.type = DequantisedType(type);
    INFERD_ASSIGN(table.copy, UploadAsFloat16(type, table.type, rows, bytes, n, columns));
  }
  table.rows = table.copy.data();
  return table;
}

k::Matrix CudaMatrix::Args() const {
  k::Matrix matrix;
  matrix.type = type_;
  matrix.rows = data_.data();
  matrix.row_bytes = static_cast<std::int64_t>(RowBytes(type_, columns_));
  matrix.n = n_;
  matrix.k = columns_;
  if (scales_.bytes() > 0) {
    matrix.scales = scales_.floats();
    matrix.scale_k = group_columns_;
    matrix.scale_ld = (columns_ + group_columns_ - 1) / group_columns_;
  }
  return matrix;
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
