// SPDX-License-Identifier: Apache-2.0
// The sum of all-reduce: element by element, in rank order, in float.
#pragma once

#include <cstddef>
#include <span>

namespace inferd::comm {

/// dst[i] = ((src[0][i] + src[1][i]) + src[2][i]) + ... for i in [0, n). dst may be one of the
/// sources; the bits do not depend on n, on alignment or on the machine's vector width.
void SumInRankOrder(float* dst, std::span<const float* const> sources, std::size_t n);

}  // namespace inferd::comm
