// SPDX-License-Identifier: Apache-2.0
// A region is [2 messages][2 results][flags][calls][left], each message and result in kReduceBlocks
// equal parts, one per block. Block b of a call deals with its own part on every rank, so its flags
// alone order its accesses, whatever other blocks there are: it writes its message, raises its flag
// at every peer, waits for theirs, and reads. Messages alternate between two places: a block that
// writes to a place for the second time has seen all peers' flags of its call between, which they
// raised after their last read of it. Flags count a block's calls and live in device memory, so a
// captured launch can be replayed.
#pragma once

#include "kernels/all_reduce/peer_regions.h"
#include "kernels/cuda/peer_flags.cuh"

namespace inferd::kernels::cuda {

inline constexpr int kPeerPhases = 2;

DEVICE float* PeerFloats(const PeerRegions& peers, int rank, std::uint32_t place) {
  return reinterpret_cast<float*>(peers.region[rank]) +
         (place * kReduceBlocks + blockIdx.x) * BlockRoom(peers.max_count);
}
/// What rank `rank` says in this call of this block.
DEVICE float* PeerMessage(const PeerRegions& peers, int rank, std::uint32_t call) {
  return PeerFloats(peers, rank, call % 2);
}
/// Two-shot: what rank `rank` has summed up.
DEVICE float* PeerResult(const PeerRegions& peers, int rank, std::uint32_t call) {
  return PeerFloats(peers, rank, 2 + call % 2);
}
/// [phase][from rank][block], then [block]: calls so far, the rank's own.
DEVICE std::uint32_t* PeerFlags(const PeerRegions& peers, int rank) {
  return reinterpret_cast<std::uint32_t*>(reinterpret_cast<float*>(peers.region[rank]) +
                                          4 * kReduceBlocks * BlockRoom(peers.max_count));
}
DEVICE std::uint32_t* PeerCalls(const PeerRegions& peers) {
  return PeerFlags(peers, peers.rank) + kPeerPhases * kMaxReduceRanks * kReduceBlocks + blockIdx.x;
}

/// Not zero: a wait of this block ended by an abort.
DEVICE std::uint32_t* PeerLeft(const PeerRegions& peers) {
  return PeerCalls(peers) + kReduceBlocks;
}

/// Returns when every peer's block has reached this phase of the call, or on abort. After one the
/// block raises no flag: what it holds is not to be believed, and its peers must find out that it
/// has left.
DEVICE void MeetPeers(const PeerRegions& peers, int phase, std::uint32_t call) {
  const int block = static_cast<int>(blockIdx.x);
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < peers.ranks && *PeerLeft(peers) == 0) {
    RaiseFlag(
        PeerFlags(peers, peer) + (phase * kMaxReduceRanks + peers.rank) * kReduceBlocks + block,
        call + 1);
  }
  __syncthreads();  // all flags are up before anyone waits, whatever the order of the threads
  if (peer < peers.ranks) {
    const std::uint32_t* const theirs =
        PeerFlags(peers, peers.rank) + (phase * kMaxReduceRanks + peer) * kReduceBlocks + block;
    if (!AwaitFlag(theirs, call + 1, peers.abort)) {
      RaiseFlag(PeerLeft(peers), 1);
    }
  }
  __syncthreads();
}

/// The last statement of a kernel: the block's next call is another one.
DEVICE void EndCall(const PeerRegions& peers, std::uint32_t call) {
  if (threadIdx.x == 0) {
    *PeerCalls(peers) = call + 1;
  }
}

}  // namespace inferd::kernels::cuda
