// SPDX-License-Identifier: Apache-2.0
// Token embedding on the device.
#pragma once

#include "base/dtype.h"
#include "kernels/cuda/stream.h"

#include <cstddef>
#include <cstdint>

namespace inferd::kernels::cuda {

/// An id of kDrawnId - i stands for drawn[i].
inline constexpr std::int32_t kDrawnId = -2;

/// x[row] = table[ids[row] - first_id] * scale, [rows, hidden]; an id outside [first_id, first_id +
/// table_rows) gives a row of zeros. `table` is rows stored as `type`; kInvalidValue for a type
/// that has no kernel. `drawn` may be null when no id stands for one of it; device memory as `ids`.
Status Embed(DType type,
             const std::byte* table,
             std::int64_t table_rows,
             std::int64_t first_id,
             const std::int32_t* ids,
             const std::int32_t* drawn,
             std::int64_t rows,
             std::int64_t hidden,
             float scale,
             float* x,
             std::int64_t ldx,
             Stream stream);

}  // namespace inferd::kernels::cuda
