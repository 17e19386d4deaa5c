// SPDX-License-Identifier: Apache-2.0
// Stored plain values (F32, F16, BF16, F8_E4M3) read as floats, and the search for NaN and
// infinities in them.
#pragma once

#include "base/dtype.h"
#include "inferd/result.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace inferd::model {

/// True for the types whose values stand alone (no blocks with scales).
bool IsPlain(DType type);

/// Index of the first NaN or infinity; nullopt: all are finite. Precondition: IsPlain(type).
std::optional<std::int64_t> FirstNonFinite(DType type, std::span<const std::byte> values);

/// Precondition: type is F32, F16 or BF16.
std::vector<float> ToFloats(DType type, std::span<const std::byte> values);

}  // namespace inferd::model
