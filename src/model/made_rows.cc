// SPDX-License-Identifier: Apache-2.0
#include "model/made_rows.h"

#include "base/check.h"

#include <algorithm>
#include <utility>

namespace inferd::model {
namespace {

// make(row) gives the bytes of a row of the tensor.
template <class Make>
std::vector<std::byte> MakeEach(const store::WeightRef& ref,
                                std::size_t row_bytes,
                                ops::Device& device,
                                const Make& make) {
  std::vector<std::byte> made(static_cast<std::size_t>(ref.rows) * row_bytes);
  auto put = [&](std::int64_t row) {
    const std::vector<std::byte> bytes = make(ref.row_begin + row);
    INFERD_CHECK(bytes.size() == row_bytes);
    std::ranges::copy(bytes, made.data() + static_cast<std::size_t>(row) * row_bytes);
  };
  device.ParallelFor(ref.rows, &put, [](void* opaque, std::int64_t row) {
    (*static_cast<decltype(put)*>(opaque))(row);
  });
  return made;
}

std::size_t RowBytes(DType type, std::int64_t k) {
  return static_cast<std::size_t>(k / BlockElements(type) * BlockBytes(type));
}

}  // namespace

RowForm FormOfRows(const store::TensorSource& source,
                   const store::WeightRef& ref,
                   spec::Range columns,
                   bool of_expert,
                   RowKinds kinds) {
  const store::TensorInfo& tensor = *ref.tensor;
  RowForm form;
  form.type = ref.dtype();
  form.k = columns.size();
  if (form.type == DType::kF8E4M3 || form.type == DType::kI8) {
    const auto group = store::ScaleColumns(tensor, columns.begin, columns.end);
    if (group && kinds.scales) {
      form.scale_groups = (columns.size() + *group - 1) / *group;
    } else {
      form.type = DType::kBF16;
    }
  }
  if (!of_expert && kinds.column_order) {
    if (const auto k = store::GroupedWidth(source, tensor, columns.begin, columns.end)) {
      form.type = store::GroupedType(tensor);
      form.k = *k;
      form.grouped = true;
    }
  }
  return form;
}

std::vector<std::byte> MakeRowsAs(DType type,
                                  const store::TensorSource& source,
                                  const store::WeightRef& ref,
                                  spec::Range columns,
                                  ops::Device& device) {
  return MakeEach(ref, RowBytes(type, columns.size()), device, [&](std::int64_t row) {
    return store::MakeRows(source, *ref.tensor, type, row, row + 1, columns.begin, columns.end);
  });
}

MadeRows MakeRowsFor(const store::TensorSource& source,
                     const store::WeightRef& ref,
                     spec::Range columns,
                     bool of_expert,
                     ops::Device& device) {
  const store::TensorInfo& tensor = *ref.tensor;
  MadeRows made;
  made.form = FormOfRows(
      source, ref, columns, of_expert, {device.TakesScales(), device.TakesColumnOrder()});
  made.row_bytes = RowBytes(made.form.type, made.form.k);
  if (made.form.scale_groups > 0) {
    made.scales = store::ScalesOf(
        source, tensor, ref.row_begin, ref.row_begin + ref.rows, columns.begin, columns.end);
  }
  if (!made.form.grouped) {
    made.bytes = MakeRowsAs(made.form.type, source, ref, columns, device);
    return made;
  }
  auto grouped = store::GroupColumns(source, tensor, columns.begin, columns.end);
  INFERD_CHECK(grouped.has_value());  // FormOfRows has just seen the same values
  made.bytes = MakeEach(ref, made.row_bytes, device, [&](std::int64_t row) {
    return store::MakeGroupedRows(source, tensor, *grouped, row, row + 1, columns.begin);
  });
  made.columns = std::move(grouped->columns);
  return made;
}

}  // namespace inferd::model
