// SPDX-License-Identifier: Apache-2.0
// x[row] += what the ranks have, y[row] = x / sqrt(mean(x^2) + eps) * weight. A block takes the
// rows b, b + blocks, ... as RmsNormKernel (kernels/rows) does, in the same order of additions.
// Bytes over the links: those of GatherFromPeers or of a one-shot sum; on the device x read and
// written, y written.
#include "kernels/all_reduce/gather_cuda.h"
#include "kernels/all_reduce/peer_regions.cuh"
#include "kernels/cuda/reduce.cuh"

namespace inferd::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// The first column from `first` on that is this thread's, as column i is that of thread i % 256.
DEVICE int FirstColumn(int first) {
  return first + static_cast<int>((threadIdx.x - static_cast<unsigned>(first)) % kThreads);
}

// Adds to x and returns the sum of its squares, over this thread's columns. `turn`: of the block's
// rows which one.
template <bool kSum>
DEVICE float AddPeers(const PeerNormArgs& args, std::uint32_t call, int turn, float* x) {
  const PeerRegions& peers = args.peers;
  const int k = static_cast<int>(args.k);
  float squares = 0;
  if (kSum) {
    const std::int64_t place = static_cast<std::int64_t>(turn) * k;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < k; i += kThreads) {
      float add = PeerMessage(peers, 0, call)[place + i];
      for (int rank = 1; rank < peers.ranks; ++rank) {
        add += PeerMessage(peers, rank, call)[place + i];
      }
      const float value = x[i] + add;
      x[i] = value;
      squares = fmaf(value, value, squares);
    }
    return squares;
  }
  int first = 0;
  for (int rank = 0; rank < peers.ranks; ++rank) {
    const int width = args.columns[rank];
    const float* const theirs =
        PeerMessage(peers, rank, call) + static_cast<std::int64_t>(turn) * width;
#pragma unroll 4
    for (int i = FirstColumn(first); i < first + width; i += kThreads) {
      const float value = x[i] + theirs[i - first];
      x[i] = value;
      squares = fmaf(value, value, squares);
    }
    first += width;
  }
  return squares;
}

template <bool kSum>
__global__ void __launch_bounds__(kThreads) PeerNormKernel(PeerNormArgs args) {
  SHARED_ARRAY(float, scratch, kThreads / 32);
  const PeerRegions& peers = args.peers;
  const std::uint32_t call = *PeerCalls(peers);
  const int thread = static_cast<int>(threadIdx.x);
  const int k = static_cast<int>(args.k);
  const int width = kSum ? k : args.columns[peers.rank];
  float* message = PeerMessage(peers, peers.rank, call);
  for (std::int64_t row = blockIdx.x; row < args.rows; row += gridDim.x, message += width) {
    for (int i = thread; i < width; i += kThreads) {
      message[i] = args.mine[row * width + i];
    }
  }
  MeetPeers(peers, 0, call);
  int turn = 0;
  for (std::int64_t row = blockIdx.x; row < args.rows; row += gridDim.x, ++turn) {
    float* const x = args.x + row * k;
    float* const y = args.y + row * k;
    const float sum = BlockSum<kThreads>(AddPeers<kSum>(args, call, turn, x), scratch);
    const float inverse = 1.0F / sqrtf(sum / static_cast<float>(k) + args.eps);
    // Each thread reads back only what it wrote itself.
    for (int i = thread; i < k; i += kThreads) {
      y[i] = args.weight != nullptr ? x[i] * inverse * args.weight[i] : x[i] * inverse;
    }
    __syncthreads();  // before the next row's sum fills scratch
  }
  EndCall(peers, call);
}

int NormBlocks(std::int64_t rows) {
  return static_cast<int>(std::clamp<std::int64_t>(rows, 1, kReduceBlocks));
}

}  // namespace

bool PeerNormFits(std::int64_t rows, std::int64_t most_columns, std::int64_t max_count) {
  const std::int64_t blocks = NormBlocks(rows);
  return (rows + blocks - 1) / blocks * most_columns <= BlockRoom(max_count);
}

Status PeerAddRmsNorm(const PeerNormArgs& args, Stream stream) {
  if (!args.peers.Valid() || args.rows < 0 || args.k < 1) {
    return Status::kInvalidValue;
  }
  const int* const end = args.columns + args.peers.ranks;
  const int most = *std::max_element(args.columns, end);
  if (!PeerNormFits(args.rows, most > 0 ? most : args.k, args.peers.max_count)) {
    return Status::kInvalidValue;
  }
  const dim3 grid(static_cast<unsigned>(NormBlocks(args.rows)));
  return most > 0 ? LAUNCH_KERNEL(&PeerNormKernel<false>, grid, dim3(kThreads), 0, stream, args)
                  : LAUNCH_KERNEL(&PeerNormKernel<true>, grid, dim3(kThreads), 0, stream, args);
}

}  // namespace inferd::kernels::cuda
