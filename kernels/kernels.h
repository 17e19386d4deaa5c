// SPDX-License-Identifier: Apache-2.0
// The table of CPU kernels of one instruction set. `ops` picks one table at start and cuts the
// work; a kernel takes pointers and sizes and knows nothing of threads or devices.
#pragma once

#include "kernels/pack/layout.h"
#include "kernels/types.h"

#include <cstddef>
#include <cstdint>

namespace inferd::kernels {

/// y[t, row] = sum over k of a[t, k] * w[row, k] (+ bias[row]), t < m, rows of panels [first,
/// last). For each row and token:
///
///   int8   f = +0; per block of 32 k, ascending: f = fma(float(exact integer dot), d_w * d_a, f);
///          twice, for the halves of 16 k, where scales are per 16; one more fma for a min;
///          y = f * 2^-shift
///   float  f = fma(a[k], w[k], f), k ascending, for F32, F16 and BF16 weights: only the stored
///          weights are rounded
///   bf16   vdpbf16ps, pairs of k ascending: BF16 weights where the table has bf16_dot
///
/// k is never split and chunks store and reload f, so a row's bits depend on nothing but the row.
struct MatMulArgs {
  PackForm form;
  const std::uint8_t* panels;  // of the whole matrix, 64-byte aligned
  std::size_t panel_bytes;
  std::int64_t n;
  std::int64_t k;
  const ActBlock* a_int8;       // [m, k / 32], rows ld_int8 blocks apart
  const float* a_float;         // [m, k]
  const std::uint16_t* a_bf16;  // [m, k rounded up to even], the pad zero
  std::ptrdiff_t ld_int8;
  std::ptrdiff_t ld_float;
  std::ptrdiff_t ld_bf16;  // even
  std::int64_t m;
  float* y;
  std::ptrdiff_t ldy;
  const float* bias;  // [n] or null
  std::int64_t first;
  std::int64_t last;
  std::uint8_t* scratch;  // kMatMulScratch bytes, 64-byte aligned, the thread's own
};

/// The part of a product that makes rows [first, first + rows).
static inline MatMulArgs RowsOf(MatMulArgs args, std::int64_t first, std::int64_t rows) {
  if (args.a_int8 != nullptr) {
    args.a_int8 += first * args.ld_int8;
  }
  if (args.a_float != nullptr) {
    args.a_float += first * args.ld_float;
  }
  if (args.a_bf16 != nullptr) {
    args.a_bf16 += first * args.ld_bf16;
  }
  args.m = rows;
  args.y += first * args.ldy;
  return args;
}

/// Rows a kernel takes per pass over the panel; more are done in several passes inside the kernel.
inline constexpr int kMatMulRows = 512;
/// Decoded k blocks kept in the first-level cache at a time.
inline constexpr int kMatMulChunk = 28;
/// Panels that are multiplied together where TakesPairs: shares of such a product had better begin
/// at multiples.
inline constexpr int kPanelPair = 2;
/// Unquantised panels go one by one up to so many rows: their way from memory decides.
inline constexpr int kMatMulFewRows = 32;
static inline bool TakesPairs(const MatMulArgs& args) {
  return args.m > kMatMulFewRows && !IsInt8Form(args.form);
}
/// Sums that a kernel keeps, in (token, panel) pairs of 32: of all tokens of a pass, for several
/// panels.
inline constexpr int kMatMulSums = 4 * kMatMulRows;
inline constexpr std::size_t kMatMulScratch =
    kMatMulSums * kPanelRows * 4 + kMatMulChunk * 1536 + 4096;

/// Tokens per KV page and per softmax update. Both are part of the arithmetic: the same for decode
/// and prefill.
inline constexpr int kPageTokens = 32;
inline constexpr int kSoftmaxTokens = 64;
/// Most query rows of one attention tile, and the largest head.
inline constexpr int kAttentionRows = 12;
inline constexpr int kMaxHeadDim = 512;

/// Query rows of one KV head of one sequence. A page holds, for the head, K then V of 32 tokens:
///
///   bf16         K [d/2][32 tokens][2], V [16 token pairs][d][2]
///   all others   K [d][32 tokens], V [32 tokens][d]
///   int8         then the floats that they are multiplied by: [32 tokens] of K, [32 tokens] of V
///
/// For one row, always: per chunk of 64 tokens at absolute positions s = q.k * scale (softcapped),
/// m' = max(m, max s), o and l are rescaled by exp(m - m'), p = exp(s - m') and o += p v, tokens
/// ascending. q, s, p and o are floats: only the stored K and V are rounded
/// (int8: a scale of K multiplies q.k, one of V multiplies p).
struct AttentionArgs {
  int rows;                 // 1..kAttentionRows
  const float* const* q;    // [rows] -> [head_dim]
  float* const* y;          // [rows] -> [head_dim]
  const std::int64_t* pos;  // [rows], absolute position: sees tokens (pos - window, pos]
  const float* sink;        // [rows] or null
  std::int64_t head_dim;    // a multiple of 16, at most kMaxHeadDim
  const std::byte* base;    // the head's K in page 0
  std::size_t page_bytes;
  const std::int32_t* pages;
  float scale;
  float softcap;        // 0: none
  std::int64_t window;  // 0: all
  bool stream;          // KV comes from memory (decode): prefetch it
};

/// How a value of a KV page is stored.
enum class KvValue : std::uint8_t { kF16, kBf16, kF32, kFp8, kInt8 };

/// The widest token of a latent page.
inline constexpr int kMaxLatentDim = 640;

/// Query rows of one sequence over a latent cache (MLA, arXiv 2405.04434): a token is one vector of
/// `dim` values that all query heads share, the latent of kv_rank values and a rotated key after
/// it. All of it is K; the latent is V too and is not stored twice. A page holds [32 tokens][dim]
/// values, and for int8 the floats that they are multiplied by, [32 tokens]. Arithmetic as in
/// AttentionArgs, in chunks of one page.
struct LatentArgs {
  int rows;                 // 1..kAttentionRows
  const float* const* q;    // [rows] -> [dim]
  float* const* y;          // [rows] -> [kv_rank]
  const std::int64_t* pos;  // [rows], absolute position: sees tokens [0, pos]
  std::int64_t dim;         // at most kMaxLatentDim
  std::int64_t kv_rank;     // at most kMaxHeadDim and dim
  KvValue format;
  const std::byte* base;  // page 0
  std::size_t page_bytes;
  const std::int32_t* pages;
  float scale;
};

/// As ops::GateKind.
enum class Gate : std::uint8_t { kSilu, kGeluTanh, kGelu };

struct KernelTable {
  const char* name;
  bool bf16_dot;  // kBf16 panels meet activations rounded to bf16
  void (*matmul)(const MatMulArgs& args);
  void (*attention_bf16)(const AttentionArgs& args);
  void (*attention_half)(const AttentionArgs& args);
  void (*attention_float)(const AttentionArgs& args);
  void (*attention_fp8)(const AttentionArgs& args);
  void (*attention_int8)(const AttentionArgs& args);
  void (*attention_latent)(const LatentArgs& args);
  /// q blocks of x[0..k), the last one padded with zeros.
  void (*quantize)(const float* x, std::int64_t k, ActBlock* out);
  /// x[0..k) rounded to bf16, padded with a zero to an even count; null without bf16_dot.
  void (*to_bf16)(const float* x, std::int64_t k, std::uint16_t* out);
  /// y = x / sqrt(mean(x^2) + eps) * weight; weight may be null (all ones). y may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t k, float* y);
  /// y = gate_fn(gate) * up. y may be gate.
  void (*gate_mul)(Gate kind, const float* gate, const float* up, std::int64_t n, float* y);
  /// x += y.
  void (*add)(float* x, const float* y, std::int64_t n);
  /// y = fma(scale, x, y).
  void (*axpy)(float scale, const float* x, std::int64_t n, float* y);
};

const KernelTable& ScalarKernels();
const KernelTable& Avx2Kernels();
const KernelTable& Avx512Kernels();
/// Avx512Kernels with bf16_dot.
const KernelTable& Avx512Bf16Kernels();

/// What this CPU and its operating system support.
bool CpuHasAvx2();    // with FMA and BMI2
bool CpuHasAvx512();  // F, BW, DQ, VL with VNNI, VBMI and GFNI
bool CpuHasAvx512Bf16();
/// vdpbf16ps does twice the work of an FMA per cycle: on AMD's cores (Zen 4 and later), not on
/// Intel's, where it takes as long as four (measured on Sapphire Rapids: half the rate of FMA).
bool CpuHasFastBf16();
/// Whether the prefetchers of the CPU keep memory busy by themselves where a core reads line after
/// line: AMD's do (measured on a Zen 4), and what a program asks for far ahead takes the place of
/// their requests.
bool CpuStreamsByItself();

}  // namespace inferd::kernels
