// SPDX-License-Identifier: Apache-2.0
// A region is [2 messages][results][flags]. Block b deals with the same chunks of a message on
// every rank, whatever the count, so its flags alone order its accesses: it writes its part of the
// message, raises its flag at every peer, waits for theirs, and reads. Messages alternate between
// two places: a rank that writes to a place for the second time has seen all peers' flags of the
// call between, which they raised after their last read of it. Flags count calls and live in device
// memory, so a captured launch can be replayed. Bytes per rank and call, over the links: one-shot
// (ranks - 1) * count * 4, two-shot 2 * (ranks - 1) / ranks of count * 4.
#include "kernels/all_reduce/all_reduce_cuda.h"
#include "kernels/cuda/peer_flags.cuh"

namespace inferd::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPhases = 2;

// The parts of one rank's region.
struct Region {
  float* message;        // of this call
  float* result;         // two-shot: what this rank has summed up
  std::uint32_t* flags;  // [phase][from rank][block]
  std::uint32_t* calls;  // [block], calls so far; the rank's own
  DEVICE std::uint32_t* Flag(int phase, int from, int block) const {
    return flags + (phase * kMaxReduceRanks + from) * kReduceBlocks + block;
  }
};

DEVICE Region RegionOf(const AllReduceArgs& args, int rank, std::uint32_t call) {
  auto* floats = reinterpret_cast<float*>(args.region[rank]);
  auto* flags = reinterpret_cast<std::uint32_t*>(floats + 4 * args.max_count);
  return {floats + (call % 2) * args.max_count,
          floats + (2 + call % 2) * args.max_count,
          flags,
          flags + kPhases * kMaxReduceRanks * kReduceBlocks};
}

// Returns when every peer's block has reached this phase of the call, or on abort.
DEVICE void Meet(const AllReduceArgs& args, int phase, std::uint32_t call) {
  const int block = static_cast<int>(blockIdx.x);
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < args.ranks) {
    RaiseFlag(RegionOf(args, peer, call).Flag(phase, args.rank, block), call + 1);
  }
  __syncthreads();  // all flags are up before anyone waits, whatever the order of the threads
  if (peer < args.ranks) {
    AwaitFlag(RegionOf(args, args.rank, call).Flag(phase, peer, block), call + 1, args.abort);
  }
  __syncthreads();
}

DEVICE float SumOver(const AllReduceArgs& args, std::uint32_t call, std::int64_t i) {
  float sum = RegionOf(args, 0, call).message[i];
  for (int rank = 1; rank < args.ranks; ++rank) {
    sum += RegionOf(args, rank, call).message[i];
  }
  return sum;
}

template <bool kTwoShot>
__global__ void __launch_bounds__(kThreads) AllReduceKernel(AllReduceArgs args) {
  const int block = static_cast<int>(blockIdx.x);
  const std::uint32_t call = RegionOf(args, args.rank, 0).calls[block];
  const Region mine = RegionOf(args, args.rank, call);
  constexpr std::int64_t kStride = static_cast<std::int64_t>(kReduceBlocks) * kThreads;
  const std::int64_t first = static_cast<std::int64_t>(block) * kThreads + threadIdx.x;
  for (std::int64_t i = first; i < args.count; i += kStride) {
    mine.message[i] = args.x[i];
  }
  Meet(args, 0, call);
  if (kTwoShot) {
    for (std::int64_t i = first + args.rank * kStride; i < args.count; i += args.ranks * kStride) {
      mine.result[i] = SumOver(args, call, i);
    }
    Meet(args, 1, call);
    for (std::int64_t i = first; i < args.count; i += kStride) {
      const int owner = static_cast<int>(i / kStride % args.ranks);
      args.y[i] = RegionOf(args, owner, call).result[i];
    }
  } else {
    for (std::int64_t i = first; i < args.count; i += kStride) {
      args.y[i] = SumOver(args, call, i);
    }
  }
  if (threadIdx.x == 0) {
    mine.calls[block] = call + 1;
  }
}

template <bool kTwoShot>
Status Launch(const AllReduceArgs& args, Stream stream) {
  if (args.ranks < 1 || args.ranks > kMaxReduceRanks || args.rank < 0 || args.rank >= args.ranks ||
      args.count < 0 || args.count > args.max_count) {
    return Status::kInvalidValue;
  }
  return LAUNCH_KERNEL(
      &AllReduceKernel<kTwoShot>, dim3(kReduceBlocks), dim3(kThreads), 0, stream, args);
}

}  // namespace

std::size_t ReduceRegionBytes(std::int64_t max_count) {
  const auto flags =
      static_cast<std::size_t>(kPhases * kMaxReduceRanks * kReduceBlocks + kReduceBlocks);
  return (static_cast<std::size_t>(max_count) * 4 + flags) * 4;
}

Status AllReduceOneShot(const AllReduceArgs& args, Stream stream) {
  return Launch<false>(args, stream);
}

Status AllReduceTwoShot(const AllReduceArgs& args, Stream stream) {
  return Launch<true>(args, stream);
}

}  // namespace inferd::kernels::cuda
