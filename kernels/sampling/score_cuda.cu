// SPDX-License-Identifier: Apache-2.0
// One block per row. The sum of exponentials is cut as model/logits cuts it: blocks of 2048 logits,
// in each of which 8 lanes add every eighth, so a thread is one lane of one block and the bits are
// the host's. The best tokens: the best of each of up to 512 chunks first; then one warp takes the
// best of those, again and again, and looks in its chunk for what comes after it. Bytes: the row
// once from memory and once from the second level cache, a 512th of it per best token.
#include "kernels/cuda/reduce.cuh"
#include "kernels/sampling/logits.cuh"
#include "kernels/sampling/sampling_cuda.h"

namespace inferd::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kChunks = kThreads;
constexpr int kLanes = 8;
constexpr int kBlock = 2048;
constexpr int kBlocksAtOnce = kThreads / kLanes;
constexpr int kNoId = 0x7fffffff;

struct Best {
  float logit;
  int id;
};

DEVICE bool Before(Best a, Best b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

DEVICE Best WarpBest(Best mine) {
#pragma unroll
  for (int bits = 16; bits > 0; bits >>= 1) {
    const Best other{__shfl_xor_sync(kFullMask, mine.logit, bits),
                     __shfl_xor_sync(kFullMask, mine.id, bits)};
    mine = Before(other, mine) ? other : mine;
  }
  return mine;
}

struct Scratch {
  Best chunks[kChunks];
  float floats[kWarps];
  float sums[kBlocksAtOnce];
  unsigned before;
};

// Of ids [begin, end), by a warp, the best that comes after `last`; kNoId when none does.
DEVICE Best BestAfter(const float* logits, int begin, int end, Best last) {
  Best best{-INFINITY, kNoId};
  for (int i = begin + static_cast<int>(threadIdx.x) % 32; i < end; i += 32) {
    const Best at{logits[i], i};
    best = Before(last, at) && Before(at, best) ? at : best;
  }
  return WarpBest(best);
}

// Fills shared->chunks, each of `size` ids. The largest logit; NaN and infinities: *finite becomes
// false.
DEVICE float FillChunks(const float* logits, int vocab, int size, Scratch* shared, bool* finite) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int bad = 0;
  float top = -INFINITY;
  for (int chunk = static_cast<int>(threadIdx.x) / 32; chunk < kChunks; chunk += kWarps) {
    Best best{-INFINITY, kNoId};
    const int end = min(vocab, (chunk + 1) * size);
    for (int i = chunk * size + lane; i < end; i += 32) {
      const Best at{logits[i], i};
      bad |= IsFinite(at.logit) ? 0 : 1;
      best = Before(at, best) ? at : best;
    }
    best = WarpBest(best);
    top = fmaxf(top, best.logit);
    if (lane == 0) {
      shared->chunks[chunk] = best;
    }
  }
  *finite = __syncthreads_or(bad) == 0;
  return BlockMax<kThreads>(top, shared->floats);
}

// The sum on thread 0, and in shared->before how many tokens come before `token`.
DEVICE double SumAndRank(const float* logits, int vocab, float peak, Best token, Scratch* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  unsigned before = 0;
  for (int first = 0; first < vocab; first += kBlocksAtOnce * kBlock) {
    const int begin = first + thread / kLanes * kBlock;
    const int end = min(vocab, begin + kBlock);
    float mine = 0;
    for (int i = begin + thread % kLanes; i < end; i += kLanes) {
      const Best at{logits[i], i};
      mine = __fadd_rn(mine, ExpOf(__fsub_rn(at.logit, peak)));
      before += Before(at, token) ? 1U : 0U;
    }
    float total = 0;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      total = __fadd_rn(total, __shfl_sync(kFullMask, mine, thread % 32 / kLanes * kLanes + lane));
    }
    if (thread % kLanes == 0) {
      shared->sums[thread / kLanes] = total;
    }
    __syncthreads();
    if (thread == 0) {
      for (int block = 0; block < kBlocksAtOnce; ++block) {
        sum += static_cast<double>(shared->sums[block]);
      }
    }
    __syncthreads();
  }
  if (before > 0) {
    atomicAdd(&shared->before, before);
  }
  __syncthreads();
  return sum;
}

// By one warp, which uses shared->chunks up.
DEVICE void FindTop(
    const float* logits, int vocab, int size, int wanted, Scratch* shared, TokenScore* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int found = 0;
  for (; found < wanted; ++found) {
    Best mine{-INFINITY, kNoId};
    for (int chunk = lane; chunk < kChunks; chunk += 32) {
      const Best at = shared->chunks[chunk];
      mine = Before(at, mine) ? at : mine;
    }
    const Best best = WarpBest(mine);
    if (best.id == kNoId) {
      break;
    }
    const int begin = best.id / size * size;
    const Best next = BestAfter(logits, begin, min(vocab, begin + size), best);
    if (lane == 0) {
      out->top[found] = best.id;
      out->top_logits[found] = best.logit;
      shared->chunks[best.id / size] = next;
    }
    __syncwarp();
  }
  for (int i = found + lane; i < kMaxTop; i += 32) {
    out->top[i] = -1;
    out->top_logits[i] = 0;
  }
}

__global__ void __launch_bounds__(kThreads, 1) ScoreKernel(SamplingArgs args) {
  SHARED_ARRAY(Scratch, storage, 1);
  Scratch* shared = storage;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t row = blockIdx.x;
  const int wanted = min(args.params[row].top, kMaxTop);
  if (wanted < 0) {
    return;
  }
  const float* logits = args.logits + row * args.ld;
  TokenScore* out = args.scores + row;
  const int token = args.token[row];
  const int size = ((args.vocab + kChunks - 1) / kChunks + 31) / 32 * 32;
  if (thread == 0) {
    shared->before = 0;
  }
  bool finite = true;
  const float peak = FillChunks(logits, args.vocab, size, shared, &finite);
  if (!finite || token < 0 || token >= args.vocab) {
    if (thread == 0) {
      out->token = -1;
    }
    return;
  }
  const float logit = logits[token];
  const double sum = SumAndRank(logits, args.vocab, peak, Best{logit, token}, shared);
  if (thread == 0) {
    out->sum_exp = sum;
    out->peak = peak;
    out->logit = logit;
    out->token = token;
    out->rank = static_cast<std::int32_t>(1 + shared->before);
  }
  if (thread < 32) {
    FindTop(logits, args.vocab, size, wanted, shared, out);
  }
}

}  // namespace

Status Score(const SamplingArgs& args, Stream stream) {
  if (args.rows == 0) {
    return Status::kOk;
  }
  // The ends of chunks stay below 2^31.
  if (args.vocab < 1 || args.vocab > 1 << 30 || args.rows > 65535) {
    return Status::kInvalidValue;
  }
  return LAUNCH_KERNEL(
      ScoreKernel, dim3(static_cast<unsigned>(args.rows)), dim3(kThreads), 0, stream, args);
}

}  // namespace inferd::kernels::cuda
