// SPDX-License-Identifier: Apache-2.0
// For which sizes of step a worker records CUDA graphs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace inferd::spec {

/// Ascending numbers of rows, none beyond max_batched_tokens. `asked` is --cuda-graph-sizes, each
/// at least 1: several numbers are taken as they are; one stands for 1, 2, 4 and the multiples of 8
/// (beyond 256 of 16) up to it; none means one of max_num_seqs, at most 512.
std::vector<std::int32_t> CudaGraphSizes(std::span<const std::int64_t> asked,
                                         std::int64_t max_num_seqs,
                                         std::int64_t max_batched_tokens);

}  // namespace inferd::spec
