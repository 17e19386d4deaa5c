// SPDX-License-Identifier: Apache-2.0
// Routing: a warp per row, top_k rounds of "the best that is left". Sorting: experts are counted,
// the counts summed up, and each expert's warp then collects its pairs in order, so the result is
// the same every time: three launches of 2 * experts + 2 blocks. Masking: a thread per pair
// compares it with all others, in one block. Combining: a thread per value, slots in order. Bytes
// are small beside the experts' weights.
#include "kernels/cuda/reduce.cuh"
#include "kernels/moe/moe_cuda.h"

namespace inferd::kernels::cuda {
namespace {

constexpr int kMaxExperts = 1024;
constexpr int kMaxTopK = 32;
constexpr int kThreads = 128;

// Leaves the scores of the best groups, lane g looking at group g, and makes all others -INFINITY.
DEVICE void KeepBestGroups(const RouteArgs& args, float* scores) {
  const int lane = static_cast<int>(threadIdx.x);
  const int size = args.experts / args.groups;
  float best = -INFINITY;
  if (lane < args.groups) {
    float first = -INFINITY;
    float second = -INFINITY;
    for (int e = lane * size; e < (lane + 1) * size; ++e) {
      second = fmaxf(second, fminf(first, scores[e]));
      first = fmaxf(first, scores[e]);
    }
    best = args.group_best > 1 ? first + second : first;
  }
  int better = 0;  // groups, or equal ones with a lower index
  for (int g = 0; g < args.groups; ++g) {
    const float other = __shfl_sync(kFullMask, best, g);
    better += other > best || (other == best && g < lane) ? 1 : 0;
  }
  const unsigned kept = __ballot_sync(kFullMask, better < args.top_groups ? 1 : 0);
  __syncwarp();
  for (int e = lane; e < args.experts; e += 32) {
    scores[e] = (kept >> (e / size) & 1U) != 0 ? scores[e] : -INFINITY;
  }
}

__global__ void __launch_bounds__(32) RouteKernel(RouteArgs args) {
  SHARED_ARRAY(float, scores, kMaxExperts);
  const int lane = static_cast<int>(threadIdx.x);
  const std::int64_t row = blockIdx.x;
  const float* logits = args.logits + row * args.experts;
  // Both scores grow with the logit: without a bias its order is theirs.
  const bool by_score = args.bias != nullptr || args.group_best > 1;
  float peak = -INFINITY;
  float total = 0;
  for (int e = lane; e < args.experts; e += 32) {
    scores[e] = logits[e];
    peak = fmaxf(peak, logits[e]);
  }
  peak = WarpMax(peak);
  for (int e = lane; e < args.experts; e += 32) {
    total += expf(logits[e] - peak);
  }
  total = WarpSum(total);
  if (by_score) {
    for (int e = lane; e < args.experts; e += 32) {
      const float score =
          args.sigmoid ? 1.0F / (1.0F + expf(-logits[e])) : expf(logits[e] - peak) / total;
      scores[e] = score + (args.bias != nullptr ? args.bias[e] : 0.0F);
    }
  }
  __syncwarp();
  if (args.groups > 1) {
    KeepBestGroups(args, scores);
    __syncwarp();
  }
  float mine = 0;  // the logit of slot `lane`
  for (int slot = 0; slot < args.top_k; ++slot) {
    float best = -INFINITY;
    int index = kMaxExperts;
    for (int e = lane; e < args.experts; e += 32) {
      if (scores[e] > best) {
        best = scores[e];
        index = e;
      }
    }
    for (int bits = 16; bits > 0; bits >>= 1) {
      const float other = __shfl_xor_sync(kFullMask, best, bits);
      const int other_index = __shfl_xor_sync(kFullMask, index, bits);
      if (other > best || (other == best && other_index < index)) {
        best = other;
        index = other_index;
      }
    }
    index = index < kMaxExperts ? index : 0;  // only NaN logits are left
    mine = lane == slot ? logits[index] : mine;
    __syncwarp();  // shuffles order no memory: all lanes have read the scores
    if (lane == 0) {
      args.expert[row * args.top_k + slot] = index;
      scores[index] = -INFINITY;
    }
    __syncwarp();
  }
  const bool has_slot = lane < args.top_k;
  float weight = args.sigmoid ? 1.0F / (1.0F + expf(-mine)) : expf(mine - peak);
  const float sum = WarpSum(has_slot ? weight : 0.0F);
  const bool by_chosen = args.renormalize || (!args.sigmoid && !args.softmax_before_topk);
  weight /= by_chosen ? sum : args.sigmoid ? 1.0F : total;
  if (has_slot) {
    args.weight[row * args.top_k + lane] = weight * args.routed_scale;
  }
}

template <class Args>
DEVICE int LocalExpert(const Args& args, std::int64_t pair) {
  const int local = args.expert[pair] - args.first;
  return local >= 0 && local < args.experts ? local : -1;
}

// Block e counts the pairs of expert e into expert_begin[e + 1]; the last block marks the pairs
// that belong to nobody here.
__global__ void __launch_bounds__(32) CountPairsKernel(SortPairsArgs args) {
  const int lane = static_cast<int>(threadIdx.x);
  const int expert = static_cast<int>(blockIdx.x);
  int count = 0;
  for (std::int64_t pair = lane; pair < args.pairs; pair += 32) {
    const int local = LocalExpert(args, pair);
    count += local == expert ? 1 : 0;
    if (expert == args.experts && local < 0) {
      args.position[pair] = -1;
    }
  }
  for (int bits = 16; bits > 0; bits >>= 1) {
    count += __shfl_xor_sync(kFullMask, count, bits);
  }
  if (lane == 0 && expert < args.experts) {
    args.expert_begin[expert + 1] = count;
  }
}

// expert_begin becomes the running sum of the counts. One warp.
__global__ void __launch_bounds__(32) SumCountsKernel(SortPairsArgs args) {
  const int lane = static_cast<int>(threadIdx.x);
  int before = 0;
  for (int first = 0; first < args.experts; first += 32) {
    const int expert = first + lane;
    int sum = expert < args.experts ? args.expert_begin[expert + 1] : 0;
    for (int by = 1; by < 32; by <<= 1) {
      const int lower = __shfl_up_sync(kFullMask, sum, static_cast<unsigned>(by));
      sum += lane >= by ? lower : 0;
    }
    if (expert < args.experts) {
      args.expert_begin[expert + 1] = before + sum;
    }
    before += __shfl_sync(kFullMask, sum, 31);
  }
  if (lane == 0) {
    args.expert_begin[0] = 0;
  }
}

__global__ void __launch_bounds__(32) PlacePairsKernel(SortPairsArgs args) {
  const int lane = static_cast<int>(threadIdx.x);
  const int expert = static_cast<int>(blockIdx.x);
  int next = args.expert_begin[expert];
  for (std::int64_t first = 0; first < args.pairs; first += 32) {
    const std::int64_t pair = first + lane;
    const bool here = pair < args.pairs && LocalExpert(args, pair) == expert;
    const unsigned all = __ballot_sync(kFullMask, here ? 1 : 0);
    if (here) {
      const int at = next + __popc(all & ((1U << lane) - 1));
      args.source[at] = static_cast<std::int32_t>(pair / args.top_k);
      args.position[pair] = at;
    }
    next += __popc(all);
  }
}

constexpr int kMaskThreads = static_cast<int>(MaskPairsArgs::kMostPairs);

__global__ void __launch_bounds__(kMaskThreads) MaskPairsKernel(MaskPairsArgs args, int slots) {
  SHARED_ARRAY(int, experts, kMaskThreads);
  SHARED_ARRAY(int, slot_of, kMaskThreads);  // by an expert's first pair
  SHARED_ARRAY(int, firsts, kMaskThreads / 32);
  const int pair = static_cast<int>(threadIdx.x);
  const int pairs = static_cast<int>(args.pairs);
  const int mine = pair < pairs ? LocalExpert(args, pair) : -1;
  experts[pair] = mine;
  __syncthreads();
  int before = 0;  // pairs of the same expert
  int count = 0;
  int first = pair;
  for (int other = 0; other < pairs; ++other) {
    const bool same = experts[other] == mine;
    first = same && count == 0 ? other : first;
    count += same ? 1 : 0;
    before += same && other < pair ? 1 : 0;
  }
  const bool is_first = mine >= 0 && before == 0;
  const unsigned all = __ballot_sync(kFullMask, is_first ? 1 : 0);
  if (pair % 32 == 0) {
    firsts[pair / 32] = __popc(all);
  }
  __syncthreads();
  int slot = __popc(all & ((1U << pair % 32) - 1));
  int used = 0;
  for (int warp = 0; warp < kMaskThreads / 32; ++warp) {
    slot += warp < pair / 32 ? firsts[warp] : 0;
    used += firsts[warp];
  }
  if (is_first) {
    slot_of[pair] = slot;
    args.slot_expert[slot] = mine;
    args.slot_count[slot] = count;
  }
  if (pair >= used && pair < slots) {
    args.slot_expert[pair] = 0;
    args.slot_count[pair] = 0;
  }
  __syncthreads();
  if (pair < pairs) {
    args.position[pair] = mine >= 0 ? pair : -1;
  }
  if (mine >= 0) {
    const int at = slot_of[first] * pairs + before;
    args.pair[at] = pair;
    args.source[at] = pair / args.top_k;
  }
}

__global__ void __launch_bounds__(kThreads) CombineKernel(CombineArgs args) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  const std::int64_t row = blockIdx.x;
  if (i >= args.hidden) {
    return;
  }
  float sum = 0;
  for (int slot = 0; slot < args.top_k; ++slot) {
    const std::int64_t pair = row * args.top_k + slot;
    const int position = args.position[pair];
    if (position >= 0) {
      sum = fmaf(args.weight[pair], args.out[position * args.ldout + i], sum);
    }
  }
  float* y = args.y + row * args.ldy + i;
  *y = args.add ? *y + sum : sum;
}

}  // namespace

Status Route(const RouteArgs& args, Stream stream) {
  if (args.experts < 1 || args.experts > kMaxExperts || args.top_k < 1 || args.top_k > kMaxTopK ||
      args.top_k > args.experts || args.groups < 1 || args.groups > 32 ||
      args.experts % args.groups != 0 || args.top_groups < 1 ||
      args.experts / args.groups * args.top_groups < args.top_k) {
    return Status::kInvalidValue;
  }
  if (args.rows == 0) {
    return Status::kOk;
  }
  return LAUNCH_KERNEL(
      RouteKernel, dim3(static_cast<unsigned>(args.rows)), dim3(32), 0, stream, args);
}

Status SortPairs(const SortPairsArgs& args, Stream stream) {
  if (args.experts < 1 || args.experts > kMaxExperts || args.top_k < 1) {
    return Status::kInvalidValue;
  }
  const auto experts = static_cast<unsigned>(args.experts);
  Status status = LAUNCH_KERNEL(CountPairsKernel, dim3(experts + 1), dim3(32), 0, stream, args);
  if (status == Status::kOk) {
    status = LAUNCH_KERNEL(SumCountsKernel, dim3(1), dim3(32), 0, stream, args);
  }
  if (status == Status::kOk) {
    status = LAUNCH_KERNEL(PlacePairsKernel, dim3(experts), dim3(32), 0, stream, args);
  }
  return status;
}

Status MaskPairs(const MaskPairsArgs& args, Stream stream) {
  if (args.experts < 1 || args.top_k < 1 || args.pairs > MaskPairsArgs::kMostPairs) {
    return Status::kInvalidValue;
  }
  if (args.pairs == 0) {
    return Status::kOk;
  }
  return LAUNCH_KERNEL(MaskPairsKernel, dim3(1), dim3(kMaskThreads), 0, stream, args, args.Slots());
}

Status Combine(const CombineArgs& args, Stream stream) {
  if (args.rows == 0 || args.hidden == 0) {
    return Status::kOk;
  }
  const dim3 grid(static_cast<unsigned>(args.rows),
                  static_cast<unsigned>((args.hidden + kThreads - 1) / kThreads));
  return LAUNCH_KERNEL(CombineKernel, grid, dim3(kThreads), 0, stream, args);
}

}  // namespace inferd::kernels::cuda
