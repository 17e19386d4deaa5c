// SPDX-License-Identifier: Apache-2.0
// What both product kernels are made of: where a block's work is, the weights of a chunk as
// fragments, the multiplication, the store.
#pragma once

#include "kernels/matmul/matmul_cuda.h"
#include "kernels/matmul/weight_formats.cuh"

namespace inferd::kernels::cuda {

/// MatMul and GroupedMatMul in one shape.
struct MatMulLaunch {
  Matrix w;
  const float* x;
  std::int64_t ldx;
  std::int64_t m;
  const float* bias;
  bool add;
  float* y;
  std::int64_t ldy;
  // Grouped only.
  const std::byte* const* expert_rows;
  std::int64_t scale_stride;
  const std::int32_t* expert_begin;
  const std::int32_t* source;
  int experts;
  const std::int32_t* slot_expert;
  const std::int32_t* slot_count;
  const std::int32_t* target;
  std::int64_t slot_stride;
};

// A lane's view of the block's work: which rows of W and of x.
struct MatMulPlace {
  std::int64_t first;  // first position of this expert
  std::int64_t count;
  std::int64_t row;  // of W, first of the warp's 16
  int expert;
};

DEVICE MatMulPlace PlaceOf(const MatMulLaunch& args, std::int64_t row) {
  const int z = static_cast<int>(blockIdx.z);
  if (args.slot_expert != nullptr) {
    return {z * args.slot_stride, args.slot_count[z], row, args.slot_expert[z]};
  }
  if (args.expert_begin == nullptr) {
    return {0, args.m, row, 0};
  }
  const std::int64_t first = args.expert_begin[z];
  return {first, args.expert_begin[z + 1] - first, row, z};
}

// Row `index` of W; beyond the last it is the last, whose results are then not stored.
DEVICE WeightRow RowOf(const MatMulLaunch& args, const MatMulPlace& place, std::int64_t index) {
  const Matrix& w = args.w;
  index = index < w.n ? index : w.n - 1;
  const std::byte* rows = args.expert_rows != nullptr ? args.expert_rows[place.expert] : w.rows;
  const std::int64_t scale = index / w.scale_rows * w.scale_ld + place.expert * args.scale_stride;
  WeightRow row;
  row.bytes = rows + index * w.row_bytes;
  row.scales = w.scales != nullptr ? w.scales + scale : nullptr;
  row.zeros = w.zeros != nullptr ? w.zeros + scale : nullptr;
  row.scale_k = static_cast<int>(w.scale_k < w.k ? w.scale_k : w.k);
  row.k = static_cast<int>(w.k);
  row.aligned = w.row_bytes % 16 == 0;
  return row;
}

// The weights of one chunk, ready for the tensor cores: rows lane / 4 and lane / 4 + 8.
template <class Format>
struct WeightFragment {
  std::uint32_t a[Format::kTerms][2][4];
  float scale[2][2];  // [row][half]
  float min[2][2];

  DEVICE void Set(const typename Format::Raw& low_row, const typename Format::Raw& high_row) {
    std::uint32_t low[Format::kTerms][4];
    std::uint32_t high[Format::kTerms][4];
    Format::Unpack(low_row, low, scale[0], min[0]);
    Format::Unpack(high_row, high, scale[1], min[1]);
#pragma unroll
    for (int term = 0; term < Format::kTerms; ++term) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        a[term][step][0] = low[term][2 * step];
        a[term][step][1] = high[term][2 * step];
        a[term][step][2] = low[term][2 * step + 1];
        a[term][step][3] = high[term][2 * step + 1];
      }
    }
  }
};

// sum += W x for one chunk and one tile of 8 activations, of which this lane has x[0..8).
template <class Format>
DEVICE void MultiplyChunk(const WeightFragment<Format>& w, const float (&x)[8], float (&sum)[4]) {
  constexpr int kOrders = Format::kTerms > Format::kActTerms ? Format::kTerms : Format::kActTerms;
  constexpr std::uint32_t kOnes = 0x3f803f80U;
  std::uint32_t b[Format::kActTerms][4];
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    SplitPair<Format::kActTerms>(x[2 * p], x[2 * p + 1], p, b);
  }
  float part[4] = {0, 0, 0, 0};
  float ones_part[4] = {0, 0, 0, 0};
#pragma unroll
  for (int step = 0; step < 2; ++step) {
#pragma unroll
    for (int order = kOrders - 1; order >= 0; --order) {  // small terms first
#pragma unroll
      for (int term = 0; term < Format::kTerms; ++term) {
        const int other = order - term;
        if (other >= 0 && other < Format::kActTerms) {
          if (Format::kScaling == Scaling::kNone) {
            MmaBf16(sum, w.a[term][step], b[other][2 * step], b[other][2 * step + 1]);
          } else {
            MmaBf16(part, w.a[term][step], b[other][2 * step], b[other][2 * step + 1]);
          }
        }
      }
      if (Format::kHasMin) {
        const std::uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
        MmaBf16(ones_part, ones, b[order][2 * step], b[order][2 * step + 1]);
      }
    }
    if (Format::kScaling == Scaling::kPer16 || (Format::kScaling == Scaling::kPer32 && step == 1)) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[i] = fmaf(w.scale[i / 2][step], part[i], sum[i]);
        part[i] = 0;
        if (Format::kHasMin) {
          sum[i] = fmaf(-w.min[i / 2][step], ones_part[i], sum[i]);
          ones_part[i] = 0;
        }
      }
    }
  }
}

DEVICE int QuarterBegin(int chunks, int quarter) { return chunks * quarter / 4; }

// y of one tile from its fragment: rows of W lane / 4 (+ 8), positions 2 (lane % 4) and the next.
DEVICE void StoreTile(const MatMulLaunch& args,
                      const MatMulPlace& place,
                      std::int64_t tile0,
                      const float (&sum)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t n = place.row + lane / 4 + i / 2 * 8;
    const std::int64_t position = tile0 + lane % 4 * 2 + i % 2;
    if (n < args.w.n && position < place.count) {
      const std::int64_t at = place.first + position;
      float* y = args.y + (args.target != nullptr ? args.target[at] : at) * args.ldy + n;
      const float value = args.bias != nullptr ? sum[i] + args.bias[n] : sum[i];
      *y = args.add ? *y + value : value;
    }
  }
}

// Eight activations of one row as KOf orders them; zeros past k, and where there is no row.
template <Scaling kScaling>
DEVICE void LoadActivations(const float* row, int k0, int t, int k, bool aligned, float (&x)[8]) {
  constexpr int kRun = kScaling == Scaling::kPer16 ? 4 : 8;
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const int at = k0 + (kRun == 8 ? t * 8 + i : i * 4 + t * 4);
    if (row != nullptr && aligned && at + 4 <= k) {
      const float4 four = *reinterpret_cast<const float4*>(row + at);
      x[i] = four.x;
      x[i + 1] = four.y;
      x[i + 2] = four.z;
      x[i + 3] = four.w;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x[i + j] = row != nullptr && at + j < k ? row[at + j] : 0.0F;
      }
    }
  }
}

}  // namespace inferd::kernels::cuda
