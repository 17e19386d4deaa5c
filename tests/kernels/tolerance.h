// SPDX-License-Identifier: Apache-2.0
// How far a kernel may be from double arithmetic on the same (already rounded) inputs.
#pragma once

namespace inferd::kernels {

/// Products: |error| / sum |w a|. Float addition of a long chain is all that is left.
inline constexpr double kMatMulTolerance = 4e-6;
/// Row kernels, relative to the largest value of the row.
inline constexpr double kRowTolerance = 2e-6;
/// Attention, relative to the largest |v|.
inline constexpr double kAttentionTolerance = 1e-5;

}  // namespace inferd::kernels
