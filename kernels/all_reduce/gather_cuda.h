// SPDX-License-Identifier: Apache-2.0
// Columns of the ranks side by side, and the end of a block that was cut over ranks: the residual
// and the next block's norm in the same launch as the exchange. All for small messages, through
// peer memory. A rank's bits do not depend on the number of rows.
#pragma once

#include "kernels/all_reduce/peer_regions.h"

namespace inferd::kernels::cuda {

struct GatherArgs {
  PeerRegions peers;
  /// [rows, columns[peers.rank]], rows that follow one another.
  const float* mine = nullptr;
  /// Of each rank.
  int columns[kMaxReduceRanks] = {};
  std::int64_t rows = 0;
  float* full = nullptr;  // [rows, sum of columns]; null: this rank only takes part
};
/// full = all ranks' columns, in rank order. kInvalidValue: rows * the most columns are more than
/// peers.max_count.
Status GatherFromPeers(const GatherArgs& args, Stream stream);

struct PeerNormArgs {
  PeerRegions peers;
  /// [rows, columns[peers.rank]], rows that follow one another.
  const float* mine = nullptr;
  /// Of each rank; all 0: every rank has k, which are summed in rank order.
  int columns[kMaxReduceRanks] = {};
  std::int64_t rows = 0;
  std::int64_t k = 0;  // the sum of columns
  float* x = nullptr;  // [rows, k]
  const float* weight = nullptr;
  float eps = 0;
  float* y = nullptr;  // [rows, k]
};
/// Whether the rows fit: a block takes whole rows.
bool PeerNormFits(std::int64_t rows, std::int64_t most_columns, std::int64_t max_count);
/// x += the gathered columns, or the sum; y = RmsNorm(x) * weight: the bits of GatherFromPeers or
/// AllReduceOneShot with AddRmsNorm (kernels/rows) behind it. kInvalidValue: the rows do not fit.
Status PeerAddRmsNorm(const PeerNormArgs& args, Stream stream);

}  // namespace inferd::kernels::cuda
