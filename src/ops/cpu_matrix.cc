// SPDX-License-Identifier: Apache-2.0
// Packed weights and activation buffers of the CPU device.
#include "base/check.h"
#include "base/error.h"
#include "kernels/pack/pack.h"
#include "ops/cpu_device.h"
#include "ops/cpu_region.h"

#include <algorithm>
#include <cstring>

namespace inferd::ops {
namespace {

ActForm ActFormOf(kernels::PackForm form, bool bf16_dot) {
  if (kernels::IsInt8Form(form)) {
    return kActInt8;
  }
  return bf16_dot && form == kernels::PackForm::kBf16 ? kActBf16 : kActFloat;
}

tensor::HostBuffer AllocateOrDie(std::size_t bytes) {
  Result<tensor::HostBuffer> buffer = tensor::HostBuffer::Allocate(bytes);
  INFERD_CHECK_MSG(buffer.ok(), "activation buffers fit the planned memory");
  return std::move(buffer).value();
}

bool IsWeightType(DType type) {
  return type != DType::kI32 && type != DType::kI8 && type != DType::kU8;
}

}  // namespace

CpuMatrix::CpuMatrix(kernels::PackForm pack_form,
                     std::int64_t n,
                     std::int64_t k,
                     ActForm form,
                     tensor::HostBuffer data)
    : pack_form_(pack_form),
      form_(form),
      n_(n),
      k_(k),
      panel_bytes_(kernels::PanelBytes(pack_form, k)),
      data_(std::move(data)) {}

kernels::MatMulArgs CpuMatrix::Args() const {
  kernels::MatMulArgs args = {};
  args.form = pack_form_;
  args.panels = reinterpret_cast<const std::uint8_t*>(data_.data());
  args.panel_bytes = panel_bytes_;
  args.n = n_;
  args.k = k_;
  return args;
}

double CpuMatrix::PanelCost(std::int64_t rows) const {
  return static_cast<double>(panel_bytes_) * std::max(1.0, static_cast<double>(rows) / 8);
}

CpuActivations::CpuActivations(std::int64_t max_rows,
                               std::int64_t k,
                               unsigned forms,
                               const kernels::KernelTable& kernels)
    : max_rows_(max_rows),
      k_(k),
      forms_(forms),
      kernels_(kernels),
      ld_int8_((k + 31) / 32),
      ld_bf16_(k + k % 2) {
  const auto rows = static_cast<std::size_t>(max_rows);
  // One spare line: kernels may read whole vectors past the last row.
  if ((forms & kActInt8) != 0) {
    int8_ =
        AllocateOrDie(rows * static_cast<std::size_t>(ld_int8_) * sizeof(kernels::ActBlock) + 64);
  }
  if ((forms & kActFloat) != 0) {
    float_ = AllocateOrDie(rows * static_cast<std::size_t>(k) * 4 + 64);
  }
  if ((forms & kActBf16) != 0) {
    bf16_ = AllocateOrDie(rows * static_cast<std::size_t>(ld_bf16_) * 2 + 64);
  }
}

void CpuActivations::Fill(std::int64_t row,
                          std::int64_t column,
                          const float* x,
                          std::int64_t count) {
  if ((forms_ & kActInt8) != 0) {
    auto* blocks = reinterpret_cast<kernels::ActBlock*>(int8_.data());
    kernels_.quantize(x, count, blocks + row * ld_int8_ + column / 32);
  }
  if ((forms_ & kActFloat) != 0) {
    auto* values = reinterpret_cast<float*>(float_.data());
    std::memcpy(values + row * k_ + column, x, static_cast<std::size_t>(count) * 4);
  }
  if ((forms_ & kActBf16) != 0) {
    auto* values = reinterpret_cast<std::uint16_t*>(bf16_.data());
    kernels_.to_bf16(x, count, values + row * ld_bf16_ + column);
  }
}

std::array<CpuActivations::Plane, 3> CpuActivations::Planes() const {
  constexpr std::size_t kBlockBytes = sizeof(kernels::ActBlock);
  const auto plane = [&](ActForm form,
                         const tensor::HostBuffer& data,
                         std::ptrdiff_t units,
                         std::int64_t unit,
                         std::size_t unit_bytes) {
    const bool held = (forms_ & form) != 0;
    return Plane{
        held ? const_cast<std::byte*>(reinterpret_cast<const std::byte*>(data.data())) : nullptr,
        static_cast<std::size_t>(units) * unit_bytes,
        unit,
        held ? unit_bytes : 0};
  };
  return {plane(kActInt8, int8_, ld_int8_, 32, kBlockBytes),
          plane(kActFloat, float_, static_cast<std::ptrdiff_t>(k_), 1, 4),
          plane(kActBf16, bf16_, ld_bf16_, 1, 2)};
}

std::size_t CpuActivations::ColumnBytes(std::int64_t columns) const {
  std::size_t bytes = 0;
  for (const Plane& plane : Planes()) {
    bytes += static_cast<std::size_t>((columns + plane.unit - 1) / plane.unit) * plane.unit_bytes;
  }
  return bytes;
}

void CpuActivations::CopyOut(std::int64_t rows, std::byte* out) const {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (const Plane& plane : Planes()) {
      const auto bytes =
          static_cast<std::size_t>((k_ + plane.unit - 1) / plane.unit) * plane.unit_bytes;
      if (bytes > 0) {
        std::memcpy(out, plane.data + static_cast<std::size_t>(row) * plane.row_bytes, bytes);
        out += bytes;
      }
    }
  }
}

void CpuActivations::CopyIn(std::int64_t rows,
                            std::int64_t first,
                            std::int64_t columns,
                            const std::byte* in) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (const Plane& plane : Planes()) {
      const auto bytes =
          static_cast<std::size_t>((columns + plane.unit - 1) / plane.unit) * plane.unit_bytes;
      if (bytes > 0) {
        std::byte* to = plane.data + static_cast<std::size_t>(row) * plane.row_bytes;
        std::memcpy(
            to + static_cast<std::size_t>(first / plane.unit) * plane.unit_bytes, in, bytes);
        in += bytes;
      }
    }
  }
}

void CpuActivations::CopyRow(const CpuActivations& from, std::int64_t from_row, std::int64_t row) {
  const auto sources = from.Planes();
  const auto planes = Planes();
  for (std::size_t i = 0; i < planes.size(); ++i) {
    if (planes[i].data != nullptr) {
      const std::size_t bytes = planes[i].row_bytes;
      std::memcpy(planes[i].data + static_cast<std::size_t>(row) * bytes,
                  sources[i].data + static_cast<std::size_t>(from_row) * bytes,
                  bytes);
    }
  }
}

void CpuActivations::SetInputs(std::int64_t first,
                               std::int64_t rows,
                               kernels::MatMulArgs* args) const {
  args->m = rows;
  args->ld_int8 = ld_int8_;
  args->ld_float = k_;
  args->ld_bf16 = ld_bf16_;
  if ((forms_ & kActInt8) != 0) {
    args->a_int8 = reinterpret_cast<const kernels::ActBlock*>(int8_.data()) + first * ld_int8_;
  }
  if ((forms_ & kActFloat) != 0) {
    args->a_float = reinterpret_cast<const float*>(float_.data()) + first * k_;
  }
  if ((forms_ & kActBf16) != 0) {
    args->a_bf16 = reinterpret_cast<const std::uint16_t*>(bf16_.data()) + first * ld_bf16_;
  }
}

std::unique_ptr<Activations> CpuDevice::NewActivations(std::int64_t max_rows,
                                                       std::int64_t k,
                                                       unsigned forms) {
  return std::make_unique<CpuActivations>(max_rows, k, forms, kernels_);
}

Result<std::unique_ptr<PackedMatrix>> CpuDevice::Pack(DType type,
                                                      std::span<const std::byte> rows,
                                                      std::int64_t n,
                                                      std::int64_t k,
                                                      std::size_t row_bytes,
                                                      const MatrixScales& scales,
                                                      const ColumnOrder& order) {
  INFERD_CHECK(scales.values.empty() && order.inputs.empty());
  if (!IsWeightType(type)) {
    return InvalidArgument("weights of type {} cannot be multiplied", DTypeName(type));
  }
  constexpr std::int64_t kMaxSide = std::int64_t{1} << 31;
  if (n < 1 || k < 1 || n > kMaxSide || k > kMaxSide) {
    return InvalidArgument("a weight matrix of {} x {} cannot be packed", n, k);
  }
  if (k % BlockElements(type) != 0) {
    return InvalidArgument("{} columns are no multiple of the {} values of a {} block",
                           k,
                           BlockElements(type),
                           DTypeName(type));
  }
  const auto needed = static_cast<std::size_t>(k / BlockElements(type) * BlockBytes(type));
  if (row_bytes < needed || rows.size() < needed ||
      (rows.size() - needed) / row_bytes < static_cast<std::size_t>(n - 1)) {
    return InvalidArgument(
        "{} rows of {} bytes need more than the {} bytes given", n, row_bytes, rows.size());
  }
  const kernels::PackForm form = kernels::FormOf(type);
  const std::size_t panel_bytes = kernels::PanelBytes(form, k);
  const std::int64_t panels = kernels::NumPanels(n);
  INFERD_ASSIGN(tensor::HostBuffer data,
                weights_.Allocate(static_cast<std::size_t>(panels) * panel_bytes));
  std::atomic<std::int64_t> bad_row{n};
  ForEach(panels, n * k, [&](int, std::int64_t p) {
    const std::int64_t row = p * kernels::kPanelRows;
    const auto count = static_cast<int>(std::min<std::int64_t>(kernels::kPanelRows, n - row));
    const int bad = kernels::PackPanel(type,
                                       rows.data() + static_cast<std::size_t>(row) * row_bytes,
                                       row_bytes,
                                       count,
                                       k,
                                       data.data() + static_cast<std::size_t>(p) * panel_bytes);
    if (bad >= 0) {
      std::int64_t seen = bad_row.load();
      while (row + bad < seen && !bad_row.compare_exchange_weak(seen, row + bad)) {
      }
    }
  });
  if (bad_row.load() < n) {
    return InvalidArgument(
        "row {} holds Inf or NaN: the weights are damaged or were converted wrongly",
        bad_row.load());
  }
  return std::unique_ptr<PackedMatrix>(
      std::make_unique<CpuMatrix>(form, n, k, ActFormOf(form, kernels_.bf16_dot), std::move(data)));
}

}  // namespace inferd::ops
