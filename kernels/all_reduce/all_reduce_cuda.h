// SPDX-License-Identifier: Apache-2.0
// Sums of small messages over the devices of one host: y = the sum over the ranks of x, added in
// rank order, so all ranks get the same bits every time. One-shot reads every peer's whole message
// and has the least latency; two-shot reads 2 / ranks of it.
#pragma once

#include "kernels/all_reduce/peer_regions.h"

namespace inferd::kernels::cuda {

struct AllReduceArgs {
  PeerRegions peers;
  const float* x = nullptr;
  float* y = nullptr;  // may be x
  std::int64_t count = 0;
};
/// kInvalidValue: more than peers.max_count.
Status AllReduceOneShot(const AllReduceArgs& args, Stream stream);
Status AllReduceTwoShot(const AllReduceArgs& args, Stream stream);

}  // namespace inferd::kernels::cuda
