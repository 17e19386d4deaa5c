// SPDX-License-Identifier: Apache-2.0
// Rows of a quantised layer as a device takes them.
#pragma once

#include "base/dtype.h"
#include "ops/device.h"
#include "spec/parallel.h"
#include "store/quantised.h"
#include "store/weights.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace inferd::model {

/// What a device multiplies beside plain rows: ops::Device says it, and ops::DeviceClass of one
/// that is not at hand.
struct RowKinds {
  bool scales = false;
  bool column_order = false;
};

/// What MakeRowsFor makes, told without making it.
struct RowForm {
  DType type = DType::kF16;
  std::int64_t k = 0;             // stored columns
  std::int64_t scale_groups = 0;  // scales of a row beside it
  bool grouped = false;           // columns are in another order, which is kept too
};
RowForm FormOfRows(const store::TensorSource& source,
                   const store::WeightRef& ref,
                   spec::Range columns,
                   bool of_expert,
                   RowKinds kinds);

struct MadeRows {
  RowForm form;
  std::size_t row_bytes = 0;
  std::vector<std::byte> bytes;            // [ref.rows, row_bytes]
  std::optional<store::RowScales> scales;  // of E4M3 and int8
  std::vector<std::int32_t> columns;       // as ops::ColumnOrder::inputs
};

/// Columns `columns` of a folded tensor's rows, in the form of fewest bits that `device`
/// multiplies. of_expert: one of several matrices that are multiplied together, so its columns stay
/// in order. Runs on the device's threads.
MadeRows MakeRowsFor(const store::TensorSource& source,
                     const store::WeightRef& ref,
                     spec::Range columns,
                     bool of_expert,
                     ops::Device& device);

/// Those columns as `type`, the tensor's own or BF16: [ref.rows, columns]. Runs on the device's
/// threads.
std::vector<std::byte> MakeRowsAs(DType type,
                                  const store::TensorSource& source,
                                  const store::WeightRef& ref,
                                  spec::Range columns,
                                  ops::Device& device);

}  // namespace inferd::model
