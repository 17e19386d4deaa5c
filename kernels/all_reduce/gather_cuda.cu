// SPDX-License-Identifier: Apache-2.0
// full[row, first of rank r + c] = mine_r[row, c]. Bytes per rank and call, over the links: all
// columns but its own, * rows * 4; on the device 2 * rows * all columns * 4.
#include "kernels/all_reduce/gather_cuda.h"
#include "kernels/all_reduce/peer_regions.cuh"

namespace inferd::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// T is float or float4.
template <class T>
__global__ void __launch_bounds__(kThreads) GatherPeersKernel(GatherArgs args) {
  const PeerRegions& peers = args.peers;
  const std::uint32_t call = *PeerCalls(peers);
  constexpr auto kFloats = static_cast<unsigned>(sizeof(T) / sizeof(float));
  const auto blocks = static_cast<int>(gridDim.x);
  const auto rows = static_cast<unsigned>(args.rows);
  const T* const mine = reinterpret_cast<const T*>(args.mine);
  unsigned stride = 0;
  for (int rank = 0; rank < peers.ranks; ++rank) {
    stride += static_cast<unsigned>(args.columns[rank]) / kFloats;
  }
  // Of rank `rank`, in T: this block's [begin, end).
  const auto begin_of = [&](unsigned width) {
    return blockIdx.x * static_cast<unsigned>(BlockShare(width * kFloats * rows, blocks)) / kFloats;
  };
  const auto end_of = [&](unsigned width) {
    const unsigned end = (blockIdx.x + 1) *
                         static_cast<unsigned>(BlockShare(width * kFloats * rows, blocks)) /
                         kFloats;
    return end < width * rows ? end : width * rows;
  };
  const unsigned own = static_cast<unsigned>(args.columns[peers.rank]) / kFloats;
  const unsigned own_begin = begin_of(own);
  T* const message = reinterpret_cast<T*>(PeerMessage(peers, peers.rank, call));
  for (unsigned i = own_begin + threadIdx.x; i < end_of(own); i += kThreads) {
    message[i - own_begin] = mine[i];
  }
  MeetPeers(peers, 0, call);
  T* full = reinterpret_cast<T*>(args.full);
  for (int rank = 0; rank < peers.ranks && full != nullptr; ++rank) {
    const unsigned width = static_cast<unsigned>(args.columns[rank]) / kFloats;
    const unsigned begin = begin_of(width);
    const unsigned end = end_of(width);
    const T* const theirs = reinterpret_cast<const T*>(PeerMessage(peers, rank, call));
#pragma unroll 4
    for (unsigned i = begin + threadIdx.x; i < end; i += kThreads) {
      const unsigned row = i / width;
      full[row * stride + (i - row * width)] = theirs[i - begin];
    }
    full += width;
  }
  EndCall(peers, call);
}

bool Aligned(const GatherArgs& args) {
  const auto places =
      reinterpret_cast<std::uintptr_t>(args.mine) | reinterpret_cast<std::uintptr_t>(args.full);
  return places % sizeof(float4) == 0 &&
         std::all_of(
             args.columns, args.columns + args.peers.ranks, [](int n) { return n % 4 == 0; });
}

}  // namespace

Status GatherFromPeers(const GatherArgs& args, Stream stream) {
  if (!args.peers.Valid() || args.rows < 0) {
    return Status::kInvalidValue;
  }
  const std::int64_t most =
      *std::max_element(args.columns, args.columns + args.peers.ranks) * args.rows;
  if (most > args.peers.max_count ||
      *std::min_element(args.columns, args.columns + args.peers.ranks) < 0) {
    return Status::kInvalidValue;
  }
  const dim3 grid(static_cast<unsigned>(BlocksFor(most, args.peers.max_count)));
  return Aligned(args)
             ? LAUNCH_KERNEL(&GatherPeersKernel<float4>, grid, dim3(kThreads), 0, stream, args)
             : LAUNCH_KERNEL(&GatherPeersKernel<float>, grid, dim3(kThreads), 0, stream, args);
}

}  // namespace inferd::kernels::cuda
