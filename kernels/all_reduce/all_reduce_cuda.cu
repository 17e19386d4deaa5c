// SPDX-License-Identifier: Apache-2.0
// y[i] = x_0[i] + x_1[i] + ... over the ranks. Bytes per rank and call, over the links: one-shot
// (ranks - 1) * count * 4, two-shot 2 * (ranks - 1) / ranks of count * 4.
#include "kernels/all_reduce/all_reduce_cuda.h"
#include "kernels/all_reduce/peer_regions.cuh"

namespace inferd::kernels::cuda {
namespace {

constexpr int kThreads = 256;

DEVICE float Plus(float a, float b) { return a + b; }
DEVICE float4 Plus(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

template <class T>
DEVICE T SumOver(const PeerRegions& peers, std::uint32_t call, std::int64_t i) {
  T sum = reinterpret_cast<const T*>(PeerMessage(peers, 0, call))[i];
  for (int rank = 1; rank < peers.ranks; ++rank) {
    sum = Plus(sum, reinterpret_cast<const T*>(PeerMessage(peers, rank, call))[i]);
  }
  return sum;
}

// T is float or float4; `share` are the floats of each block.
template <class T, bool kTwoShot>
__global__ void __launch_bounds__(kThreads, 1)
    AllReduceKernel(const __grid_constant__ AllReduceArgs args, std::int64_t share) {
  const PeerRegions& peers = args.peers;
  const std::uint32_t call = *PeerCalls(peers);
  constexpr auto kFloats = static_cast<std::int64_t>(sizeof(T) / sizeof(float));
  const std::int64_t first = blockIdx.x * share;
  const std::int64_t left = args.count - first;
  const std::int64_t count = (left < share ? left : share) / kFloats;
  const T* const x = reinterpret_cast<const T*>(args.x + first);
  T* const y = reinterpret_cast<T*>(args.y + first);
  T* const message = reinterpret_cast<T*>(PeerMessage(peers, peers.rank, call));
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    message[i] = x[i];
  }
  MeetPeers(peers, 0, call);
  if (kTwoShot) {
    const std::int64_t slice = (count + peers.ranks - 1) / peers.ranks;
    const std::int64_t begin = slice * peers.rank;
    const std::int64_t end = begin + slice < count ? begin + slice : count;
    T* const result = reinterpret_cast<T*>(PeerResult(peers, peers.rank, call));
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      result[i] = SumOver<T>(peers, call, i);
    }
    MeetPeers(peers, 1, call);
    for (int owner = 0; owner < peers.ranks; ++owner) {
      const T* const theirs = reinterpret_cast<const T*>(PeerResult(peers, owner, call));
      const std::int64_t last = slice * (owner + 1) < count ? slice * (owner + 1) : count;
      for (std::int64_t i = slice * owner + threadIdx.x; i < last; i += kThreads) {
        y[i] = theirs[i];
      }
    }
  } else {
#pragma unroll 4
    for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
      y[i] = SumOver<T>(peers, call, i);
    }
  }
  EndCall(peers, call);
}

template <bool kTwoShot>
Status Launch(const AllReduceArgs& args, Stream stream) {
  if (!args.peers.Valid() || args.count < 0 || args.count > args.peers.max_count) {
    return Status::kInvalidValue;
  }
  const int blocks = BlocksFor(args.count, args.peers.max_count);
  const std::int64_t share = BlockShare(args.count, blocks);
  const dim3 grid(static_cast<unsigned>(blocks));
  // Which of the two is this rank's affair: shares are multiples of four floats in both.
  const auto places =
      reinterpret_cast<std::uintptr_t>(args.x) | reinterpret_cast<std::uintptr_t>(args.y);
  if (args.count % 4 == 0 && places % sizeof(float4) == 0) {
    return LAUNCH_KERNEL(
        (&AllReduceKernel<float4, kTwoShot>), grid, dim3(kThreads), 0, stream, args, share);
  }
  return LAUNCH_KERNEL(
      (&AllReduceKernel<float, kTwoShot>), grid, dim3(kThreads), 0, stream, args, share);
}

}  // namespace

std::size_t ReduceRegionBytes(std::int64_t max_count) {
  const auto flags =
      static_cast<std::size_t>(kPeerPhases * kMaxReduceRanks * kReduceBlocks + 2 * kReduceBlocks);
  return (static_cast<std::size_t>(4 * kReduceBlocks * BlockRoom(max_count)) + flags) * 4;
}

Status AllReduceOneShot(const AllReduceArgs& args, Stream stream) {
  return Launch<false>(args, stream);
}

Status AllReduceTwoShot(const AllReduceArgs& args, Stream stream) {
  return Launch<true>(args, stream);
}

}  // namespace inferd::kernels::cuda
