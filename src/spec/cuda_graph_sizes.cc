// SPDX-License-Identifier: Apache-2.0
#include "spec/cuda_graph_sizes.h"

#include <algorithm>

namespace inferd::spec {
namespace {

constexpr std::int64_t kMostByDefault = 512;

std::int64_t SizeAfter(std::int64_t size) {
  return size < 4 ? 2 * size : size < 8 ? 8 : size + (size < 256 ? 8 : 16);
}

}  // namespace

std::vector<std::int32_t> CudaGraphSizes(std::span<const std::int64_t> asked,
                                         std::int64_t max_num_seqs,
                                         std::int64_t max_batched_tokens) {
  std::vector<std::int64_t> sizes(asked.begin(), asked.end());
  if (sizes.size() <= 1) {
    const std::int64_t most = sizes.empty() ? std::min(max_num_seqs, kMostByDefault) : sizes[0];
    sizes.clear();
    std::int64_t size = 1;
    for (; size < most; size = SizeAfter(size)) {
      sizes.push_back(size);
    }
    sizes.push_back(asked.empty() ? size : most);
  }
  std::sort(sizes.begin(), sizes.end());
  std::vector<std::int32_t> result;
  for (const std::int64_t size : sizes) {
    const auto rows = static_cast<std::int32_t>(std::min(size, max_batched_tokens));
    if (result.empty() || result.back() != rows) {
      result.push_back(rows);
    }
  }
  return result;
}

}  // namespace inferd::spec
