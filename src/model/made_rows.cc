// SPDX-License-Identifier: Apache-2.0
#include "model/made_rows.h"

#include <algorithm>
#include <utility>

namespace inferd::model {
namespace {

struct Piece {
  const store::TensorSource* source;
  const store::WeightRef* ref;
  spec::Range columns;
  const store::GroupedColumns* grouped;  // or null
  MadeRows* made;

  void Make(std::int64_t row) const {
    const std::int64_t at = ref->row_begin + row;
    const store::TensorInfo& tensor = *ref->tensor;
    const auto bytes =
        grouped != nullptr
            ? store::MakeGroupedRows(*source, tensor, *grouped, at, at + 1, columns.begin)
            : store::MakeRows(*source, tensor, made->type, at, at + 1, columns.begin, columns.end);
    std::copy(bytes.begin(),
              bytes.end(),
              made->bytes.data() + static_cast<std::size_t>(row) * made->row_bytes);
  }
};

}  // namespace

RowForm FormOfRows(const store::TensorSource& source,
                   const store::WeightRef& ref,
                   spec::Range columns,
                   bool of_expert,
                   ops::DeviceClass device) {
  const store::TensorInfo& tensor = *ref.tensor;
  RowForm form;
  form.type = ref.dtype();
  form.k = columns.size();
  if (form.type == DType::kF8E4M3 || form.type == DType::kI8) {
    const auto group = store::ScaleColumns(tensor, columns.begin, columns.end);
    if (group && ops::TakesScales(device)) {
      form.scale_groups = (columns.size() + *group - 1) / *group;
    } else {
      form.type = DType::kBF16;
    }
  }
  if (!of_expert && ops::TakesColumnOrder(device)) {
    if (const auto k = store::GroupedWidth(source, tensor, columns.begin, columns.end)) {
      form.type = store::GroupedType(tensor);
      form.k = *k;
      form.grouped = true;
    }
  }
  return form;
}

MadeRows MakeRowsFor(const store::TensorSource& source,
                     const store::WeightRef& ref,
                     spec::Range columns,
                     bool of_expert,
                     ops::Device& device) {
  const store::TensorInfo& tensor = *ref.tensor;
  MadeRows made;
  made.type = ref.dtype();
  made.k = columns.size();
  if (made.type == DType::kF8E4M3 || made.type == DType::kI8) {
    made.scales = store::ScalesOf(
        source, tensor, ref.row_begin, ref.row_begin + ref.rows, columns.begin, columns.end);
    if (!made.scales || !device.TakesScales()) {
      made.scales.reset();
      made.type = DType::kBF16;
    }
  }
  std::optional<store::GroupedColumns> grouped;
  if (!of_expert && device.TakesColumnOrder()) {
    grouped = store::GroupColumns(source, tensor, columns.begin, columns.end);
  }
  if (grouped) {
    made.type = grouped->type;
    made.k = static_cast<std::int64_t>(grouped->columns.size());
  }
  made.row_bytes =
      static_cast<std::size_t>(made.k / BlockElements(made.type) * BlockBytes(made.type));
  made.bytes.resize(static_cast<std::size_t>(ref.rows) * made.row_bytes);
  Piece piece{&source, &ref, columns, grouped ? &*grouped : nullptr, &made};
  device.ParallelFor(ref.rows, &piece, [](void* opaque, std::int64_t row) {
    static_cast<const Piece*>(opaque)->Make(row);
  });
  if (grouped) {
    made.columns = std::move(grouped->columns);
  }
  return made;
}

}  // namespace inferd::model
