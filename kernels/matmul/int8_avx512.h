// SPDX-License-Identifier: Apache-2.0
// What the int8 families (small and middle batches, GEMM) share: decoding of packed groups, their
// scales, start and step of one block. Included by AVX-512 files only; internal linkage.
#pragma once

#include "kernels/kernels.h"
#include "kernels/simd_avx512.h"

namespace inferd::kernels {
namespace {

/// Distances of software prefetches into a weight stream, in bytes: one of plain panels, and two of
/// int8 products, into the second-level cache and from there into the first: 8 tokens of Q8_0 take
/// 18 to 32 % longer on a Zen 4 if asked for into the first at once.
constexpr int kPrefetchAhead = 8192;
constexpr int kSecondAhead = 16384;
constexpr int kFirstAhead = 2560;

/// Asks for the lines that follow `line` at both distances.
INFERD_INLINE inline void AskAhead(const std::uint8_t* line) {
  PrefetchSecond(line + kSecondAhead);
  Prefetch(line + kFirstAhead);
}

/// Group g of brick b of the quants at q, as unsigned bytes ready for vpdpbusd. g is a constant
/// after inlining.
template <PackForm kForm>
INFERD_INLINE inline __m512i Group(const std::uint8_t* q, int b, int g) {
  if constexpr (kForm == PackForm::kQ8) {
    return Load(q + g * 128 + b * 64);
  }
  __m512i x = Load(q + (g & 3) * 128 + b * 64);
  if constexpr (kForm == PackForm::kQ4K) {
    return _mm512_and_si512(g < 4 ? x : _mm512_srli_epi16(x, 4), _mm512_set1_epi8(0x0f));
  }
  // A bit field of a plane moves to its place by a shift of 16-bit lanes, whose neighbours' bits
  // the masks clear. One vgf2p8affineqb would do both, on the pipes of vpdpbusd.
  if constexpr (kForm == PackForm::kQ5K) {  // nibble to bits 4..1, bit g of the plane to bit 0
    const __m512i bit =
        _mm512_and_si512(_mm512_srli_epi16(Load(q + 512 + b * 64), g), _mm512_set1_epi8(1));
    x = g < 4 ? _mm512_slli_epi16(x, 1) : _mm512_srli_epi16(x, 3);
    return _mm512_ternarylogic_epi32(x, _mm512_set1_epi8(0x1e), bit, 0xea);  // x & 0x1e | bit
  }
  const __m512i top = _mm512_set1_epi8(static_cast<char>(0xf0));
  if (g < 4) {
    x = _mm512_slli_epi16(x, 4);
  }
  if constexpr (kForm == PackForm::kQ4) {
    return _mm512_and_si512(x, top);
  }
  __m512i y;
  if constexpr (kForm == PackForm::kQ5) {  // bit g to bit 3
    y = Load(q + 512 + b * 64);
    y = g < 3 ? _mm512_slli_epi16(y, 3 - g) : _mm512_srli_epi16(y, g - 3);
    y = _mm512_and_si512(y, _mm512_set1_epi8(0x08));
  } else {  // bits 2i+1, 2i to bits 3, 2
    const int i = g & 3;
    y = Load(q + 512 + (g / 4) * 128 + b * 64);
    y = i == 0 ? _mm512_slli_epi16(y, 2) : _mm512_srli_epi16(y, 2 * i - 2);
    y = _mm512_and_si512(y, _mm512_set1_epi8(0x0c));
  }
  return _mm512_ternarylogic_epi32(x, top, y, 0xea);  // x & top | y
}

// Scales of one brick of a block; `half` selects the 16 k of forms with two scales.
template <PackForm kForm>
INFERD_INLINE inline __m512 BrickScale(const std::uint8_t* head,
                                       const std::uint8_t* block,
                                       int brick,
                                       int half) {
  if constexpr (kForm == PackForm::kQ4K || kForm == PackForm::kQ5K) {
    return _mm512_mul_ps(HalfRow(head + brick * 32), ByteRow(block + brick * 16));
  } else if constexpr (kForm == PackForm::kQ6K) {
    return _mm512_mul_ps(HalfRow(head + brick * 32), SignedByteRow(block + half * 32 + brick * 16));
  } else {
    return HalfRow(block + brick * 32);
  }
}

// The mins of forms that have one.
INFERD_INLINE inline __m512 BrickMin(const std::uint8_t* head,
                                     const std::uint8_t* block,
                                     int brick) {
  return _mm512_mul_ps(HalfRow(head + 64 + brick * 32), ByteRow(block + 32 + brick * 16));
}

// What the sum of a token's products with a block, or with `half` of it, starts at.
template <bool kTwo, bool kMins>
INFERD_INLINE inline __m512i Start(const ActBlock& x, int half) {
  if constexpr (kMins) {
    return _mm512_setzero_si512();
  } else if constexpr (kTwo) {
    return _mm512_set1_epi32(half == 0 ? x.n_lo : x.n - x.n_lo);
  } else {
    return Broadcast4(&x.n);
  }
}

INFERD_INLINE inline __m512 Step(__m512i dot, __m512 dw, float da, __m512 f) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(dw, _mm512_set1_ps(da)), f);
}

/// Scales one finished tile row by 2^-shift, adds the bias and stores its valid rows.
INFERD_INLINE inline void StoreRow(
    const MatMulArgs& args, std::int64_t token, std::int64_t row0, __m512 f0, __m512 f1) {
  float* y = args.y + token * args.ldy + row0;
  const __mmask16 m0 = FirstLanes(args.n - row0);
  const __mmask16 m1 = FirstLanes(args.n - row0 - 16);
  if (args.bias != nullptr) {
    f0 = _mm512_add_ps(f0, _mm512_maskz_loadu_ps(m0, args.bias + row0));
    f1 = _mm512_add_ps(f1, _mm512_maskz_loadu_ps(m1, args.bias + row0 + 16));
  }
  _mm512_mask_storeu_ps(y, m0, f0);
  _mm512_mask_storeu_ps(y + 16, m1, f1);
}

constexpr float OutScale(PackForm form) {
  return 1.0f / static_cast<float>(1 << LayoutOf(form).shift);
}

}  // namespace
}  // namespace inferd::kernels
