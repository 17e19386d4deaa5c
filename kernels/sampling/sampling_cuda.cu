// SPDX-License-Identifier: Apache-2.0
// One block per row. With z = (logit - peak) / temperature, tokens are ordered by -z, whose bits
// grow with it; "the token at which the running mass exceeds r" is found digit by digit, 8 bits of
// -z at a time, from a histogram of masses in shared memory: no sort, four passes over the row
// (from the second level cache) per limit. Bytes: the row once from memory.
#include "kernels/cuda/reduce.cuh"
#include "kernels/sampling/logits.cuh"
#include "kernels/sampling/sampling_cuda.h"

namespace inferd::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBins = 256;
constexpr float kNotAllowed = -1e30F;
constexpr float kLowestAllowed = -1e29F;
constexpr double kUnit = 1099511627776.0;  // 2^40 per unit of mass

using Mass = unsigned long long;

DEVICE std::uint64_t Mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// As model/sampler's RandomAt.
DEVICE double RandomAt(std::uint64_t seed, std::int64_t position) {
  const std::uint64_t bits =
      Mix(Mix(seed) ^ Mix(static_cast<std::uint64_t>(position) * 0xD1342543DE82EF95ULL + 1));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

DEVICE Mass MassOf(float z) { return static_cast<Mass>(static_cast<double>(ExpOf(z)) * kUnit); }

// Grows with -z.
DEVICE unsigned KeyOf(float z) { return __float_as_uint(z) & 0x7fffffffU; }
DEVICE float ValueOf(unsigned key) { return -__uint_as_float(key); }

/// The row as the passes see it.
struct Row {
  const float* logits;
  const std::uint32_t* mask;  // bits of the allowed tokens; null: all
  int mask_words;
  int vocab;
  float peak;
  float inverse_temperature;
  DEVICE float Logit(int i) const {
    const bool allowed =
        mask == nullptr || (i / 32 < mask_words && (mask[i / 32] >> (i % 32) & 1) != 0);
    return allowed ? logits[i] : kNotAllowed;
  }
  DEVICE float Z(int i) const { return __fmul_rn(__fsub_rn(Logit(i), peak), inverse_temperature); }
};

/// What lies before a key, and at it.
struct Level {
  unsigned key;
  Mass mass_before;
  unsigned count_before;
  unsigned count;
};

struct Scratch {
  Mass mass[kBins];
  unsigned count[kBins];
  Level level;
  float floats[kThreads / 32];
  float banned[kMaxBans];  // what was there
  Mass masses[kThreads];
  unsigned counts[kThreads];
  int token;
};

// The key at which the running mass (or count) exceeds `target`, in ascending key order; the last
// one when none does. The same for all threads.
template <bool kByCount>
DEVICE Level FindLevel(const Row& row, Mass target, Scratch* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  Level level{0, 0, 0, 0};
  for (int shift = 23; shift >= -1; shift -= 8) {
    const int low = shift > 0 ? shift : 0;
    const unsigned width = shift > 0 ? 8 : 7;
    for (int i = thread; i < kBins; i += kThreads) {
      shared->mass[i] = 0;
      shared->count[i] = 0;
    }
    __syncthreads();
    for (int i = thread; i < row.vocab; i += kThreads) {
      const float z = row.Z(i);
      const unsigned key = KeyOf(z);
      if ((static_cast<Mass>(key) >> (low + width)) ==
          (static_cast<Mass>(level.key) >> (low + width))) {
        const unsigned bin = key >> low & ((1U << width) - 1);
        atomicAdd(&shared->mass[bin], MassOf(z));
        atomicAdd(&shared->count[bin], 1U);
      }
    }
    __syncthreads();
    if (thread == 0) {
      unsigned chosen = 0;
      Level at = level;
      Level last = level;
      for (unsigned bin = 0; bin < 1U << width; ++bin) {
        if (shared->count[bin] == 0) {
          continue;
        }
        chosen = bin;
        last = at;
        at.mass_before += shared->mass[bin];
        at.count_before += shared->count[bin];
        if ((kByCount ? static_cast<Mass>(at.count_before) : at.mass_before) > target) {
          break;
        }
      }
      last.key = level.key | chosen << low;
      last.count = shared->count[chosen];
      shared->level = last;
    }
    __syncthreads();
    level = shared->level;
  }
  return level;
}

template <class Value>
DEVICE Value SumAll(Value value, Value* scratch) {
  const int thread = static_cast<int>(threadIdx.x);
  scratch[thread] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half) {
      scratch[thread] += scratch[thread + half];
    }
    __syncthreads();
  }
  const Value sum = scratch[0];
  __syncthreads();
  return sum;
}

// The `index`-th token (from 0, by id) whose key is `key`.
DEVICE int TieAt(const Row& row, unsigned key, unsigned index, Scratch* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int each = (row.vocab + kThreads - 1) / kThreads;
  const int begin = min(row.vocab, thread * each);
  const int end = min(row.vocab, begin + each);
  unsigned mine = 0;
  for (int i = begin; i < end; ++i) {
    mine += KeyOf(row.Z(i)) == key ? 1U : 0U;
  }
  shared->counts[thread] = mine;
  __syncthreads();
  unsigned before = 0;
  for (int i = 0; i < thread; ++i) {
    before += shared->counts[i];
  }
  if (index >= before && index < before + mine) {
    for (int i = begin; i < end; ++i) {
      if (KeyOf(row.Z(i)) == key && before++ == index) {
        shared->token = i;
      }
    }
  }
  __syncthreads();
  return shared->token;
}

// First token at which the running mass in id order exceeds `target`.
DEVICE int TokenAtMass(const Row& row, double random, Scratch* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int each = (row.vocab + kThreads - 1) / kThreads;
  const int begin = min(row.vocab, thread * each);
  const int end = min(row.vocab, begin + each);
  Mass mine = 0;
  for (int i = begin; i < end; ++i) {
    mine += MassOf(row.Z(i));
  }
  shared->masses[thread] = mine;
  __syncthreads();
  Mass before = 0;
  Mass total = 0;
  for (int i = 0; i < kThreads; ++i) {
    before += i < thread ? shared->masses[i] : 0;
    total += shared->masses[i];
  }
  const auto target = static_cast<Mass>(random * static_cast<double>(total));
  if (target >= before && target < before + mine) {
    for (int i = begin; i < end; ++i) {
      const Mass mass = MassOf(row.Z(i));
      if (target >= before && target < before + mass) {
        shared->token = i;
      }
      before += mass;
    }
  }
  __syncthreads();
  return shared->token;
}

DEVICE Mass TakeMass(const Level& level, unsigned ties) {
  return level.mass_before + ties * MassOf(ValueOf(level.key));
}

// The draw among what top_k, top_p and min_p leave: a prefix of the order, up to `ties` tokens of
// the key `last`.
DEVICE int DrawRestricted(const Row& row,
                          const SamplingRow& params,
                          double random,
                          Scratch* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const bool by_count = params.top_k > 0 && params.top_k < row.vocab;
  unsigned last = 0x7fffffffU;
  unsigned ties = 0xffffffffU;
  Mass mass = 0;
  if (by_count) {
    const Level level = FindLevel<true>(row, static_cast<Mass>(params.top_k - 1), shared);
    last = level.key;
    ties = static_cast<unsigned>(params.top_k) - level.count_before;
    mass = TakeMass(level, ties);
  } else {
    for (int i = thread; i < row.vocab; i += kThreads) {
      mass += MassOf(row.Z(i));
    }
    mass = SumAll<Mass>(mass, shared->masses);
  }
  if (params.top_p < 1) {
    const auto limit = static_cast<Mass>(params.top_p * static_cast<double>(mass));
    const Level level = FindLevel<false>(row, limit > 0 ? limit - 1 : 0, shared);
    const Mass each = MassOf(ValueOf(level.key));
    const Mass room = limit > level.mass_before ? limit - level.mass_before : 1;
    const auto count = each > 0 ? static_cast<unsigned>((room + each - 1) / each) : level.count;
    ties = level.key < last ? count : level.key == last ? min(ties, count) : ties;
    last = min(last, level.key);
  }
  if (params.has_min_p != 0 && KeyOf(params.min_p_log) < last) {
    last = KeyOf(params.min_p_log);
    ties = 0xffffffffU;
  }
  // The mass of the prefix.
  Mass before = 0;
  unsigned equal = 0;
  for (int i = thread; i < row.vocab; i += kThreads) {
    const float z = row.Z(i);
    before += KeyOf(z) < last ? MassOf(z) : 0;
    equal += KeyOf(z) == last ? 1U : 0U;
  }
  before = SumAll<Mass>(before, shared->masses);
  equal = SumAll<unsigned>(equal, shared->counts);
  const Mass total = before + static_cast<Mass>(min(ties, equal)) * MassOf(ValueOf(last));
  const auto target = static_cast<Mass>(random * static_cast<double>(total));
  const Level level = FindLevel<false>(row, target, shared);
  const Mass each = MassOf(ValueOf(level.key));
  unsigned index = each > 0 ? static_cast<unsigned>((target - level.mass_before) / each) : 0;
  index = min(index, level.count - 1);
  return TieAt(row, level.key, index, shared);
}

// The largest logit that is allowed. NaN and infinities anywhere: *finite becomes false.
DEVICE float FindPeak(const Row& row, Scratch* shared, bool* finite) {
  float top = -INFINITY;
  int bad = 0;
  for (int i = static_cast<int>(threadIdx.x); i < row.vocab; i += kThreads) {
    bad |= IsFinite(row.logits[i]) ? 0 : 1;
    top = fmaxf(top, row.Logit(i));
  }
  *finite = __syncthreads_or(bad) == 0;
  top = BlockMax<kThreads>(top, shared->floats);
  __syncthreads();
  return top;
}

// The tokens that a row must not take, out of the way and back.
struct Bans {
  const std::int32_t* tokens;
  int count;
  float* logits;
  int vocab;

  // A token may be listed twice, so all read before any writes.
  DEVICE void Hide(float* old) const {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      old[i] = IsInside(tokens[i]) ? logits[tokens[i]] : 0.0F;
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      if (IsInside(tokens[i])) {
        atomicExch(&logits[tokens[i]], kNotAllowed);
      }
    }
    __syncthreads();
  }
  DEVICE void PutBack(const float* old) const {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      if (IsInside(tokens[i])) {
        atomicExch(&logits[tokens[i]], old[i]);
      }
    }
    __syncthreads();
  }
  DEVICE bool IsInside(int token) const { return token >= 0 && token < vocab; }
};

__global__ void __launch_bounds__(kThreads, 1) SampleKernel(SamplingArgs args) {
  SHARED_ARRAY(Scratch, storage, 1);
  Scratch* shared = storage;
  const std::int64_t index = blockIdx.x;
  const SamplingRow params = args.params[index];
  if (params.is_given != 0) {
    if (threadIdx.x == 0) {
      args.token[index] = params.given < args.vocab ? params.given : -1;
    }
    return;
  }
  float* logits = args.logits + index * args.ld;
  const bool masked =
      args.mask != nullptr && (args.has_mask == nullptr || args.has_mask[index] != 0);
  Row row{logits,
          masked ? args.mask + index * args.mask_words : nullptr,
          args.mask_words,
          args.vocab,
          0.0F,
          1.0F};
  bool finite = true;
  row.peak = FindPeak(row, shared, &finite);
  const Bans bans{args.bans + params.ban_begin,
                  finite ? min(params.ban_end - params.ban_begin, kMaxBans) : 0,
                  logits,
                  args.vocab};
  bool hidden = false;
  if (bans.count > 0) {
    bans.Hide(shared->banned);
    const float left = FindPeak(row, shared, &finite);
    hidden = left >= kLowestAllowed;
    if (hidden) {
      row.peak = left;
    } else {
      bans.PutBack(shared->banned);  // nothing else may come: the bans give way
    }
  }
  int token = -1;
  if (finite && row.peak >= kLowestAllowed) {
    if (params.inverse_temperature <= 0) {
      token = TieAt(row, 0, 0, shared);
    } else {
      row.inverse_temperature = params.inverse_temperature;
      const double random = RandomAt(params.seed, params.position);
      const bool restricted = (params.top_k > 0 && params.top_k < args.vocab) || params.top_p < 1 ||
                              params.has_min_p != 0;
      token = restricted ? DrawRestricted(row, params, random, shared)
                         : TokenAtMass(row, random, shared);
    }
  }
  if (hidden) {
    bans.PutBack(shared->banned);
  }
  if (threadIdx.x == 0) {
    args.token[index] = token;
  }
}

template <bool kUndo>
__global__ void __launch_bounds__(kThreads) EditKernel(SamplingArgs args) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.num_edits) {
    return;
  }
  const LogitEdit edit = args.edits[i];
  if (edit.token < 0 || edit.token >= args.vocab) {
    return;
  }
  float* logit = args.logits + edit.row * args.ld + edit.token;
  if (kUndo) {
    *logit = edit.before;
    return;
  }
  args.edits[i].before = *logit;
  float x = __fsub_rn(__fadd_rn(*logit, edit.add), edit.minus_first);
  x = x > 0 ? __fdiv_rn(x, edit.repetition) : __fmul_rn(x, edit.repetition);
  *logit = __fsub_rn(x, edit.minus);
}

}  // namespace

Status Sample(const SamplingArgs& args, Stream stream) {
  if (args.rows == 0) {
    return Status::kOk;
  }
  if (args.vocab < 1 || args.rows > 65535) {
    return Status::kInvalidValue;
  }
  const dim3 edits(static_cast<unsigned>((args.num_edits + kThreads - 1) / kThreads));
  Status status = Status::kOk;
  if (args.num_edits > 0) {
    status = LAUNCH_KERNEL(EditKernel<false>, edits, dim3(kThreads), 0, stream, args);
  }
  if (status == Status::kOk) {
    status = LAUNCH_KERNEL(
        SampleKernel, dim3(static_cast<unsigned>(args.rows)), dim3(kThreads), 0, stream, args);
  }
  if (status == Status::kOk && args.num_edits > 0) {
    status = LAUNCH_KERNEL(EditKernel<true>, edits, dim3(kThreads), 0, stream, args);
  }
  return status;
}

}  // namespace inferd::kernels::cuda
