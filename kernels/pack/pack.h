// SPDX-License-Identifier: Apache-2.0
// Packing of stored rows into panels (layout.h). Runs once per weight at load, one panel per call
// so that threads share it.
#pragma once

#include "base/dtype.h"
#include "kernels/pack/layout.h"

#include <cstddef>
#include <cstdint>

namespace inferd::kernels {

/// The form a stored type is packed in. Every weight keeps its exact value. Not for kI8, kU8, kI32.
PackForm FormOf(DType type);

/// Packs up to 32 rows of k values (row_bytes apart) into the panel at `out`, PanelBytes long and
/// zeroed by the caller. Returns the index of the first row whose scales or values hold Inf or NaN,
/// or -1.
int PackPanel(DType type,
              const std::byte* rows,
              std::size_t row_bytes,
              int num_rows,
              std::int64_t k,
              std::byte* out);

}  // namespace inferd::kernels
