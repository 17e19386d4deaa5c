// SPDX-License-Identifier: Apache-2.0
// What the operations of a device take: pointers and sizes, no ownership (ops/device.h says whose
// memory they point into).
#pragma once

#include "base/dtype.h"
#include "ops/memory.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace inferd::ops {

class PackedMatrix;

/// y[row, 0..n) (+ bias) = W a[row]; rows of y are ldy floats apart.
struct MatMulTask {
  const PackedMatrix* weight = nullptr;
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;
  std::int64_t ldy = 0;
  /// All ranks of a group must have the same bits, whatever libraries their hosts have.
  bool alike = false;
};

/// Value [i, j] of a stored matrix is multiplied by values[i * groups + j / group_columns], with
/// groups = ceil(k / group_columns). On the host. Empty: no scales.
struct MatrixScales {
  std::span<const float> values;
  std::int64_t group_columns = 0;  // k, or a multiple of 32
  /// The product's inputs are rounded to the weights' type, F8_E4M3 or I8, with a scale per row
  /// (token); group_columns is k.
  bool by_token = false;
};

/// Column j of a stored matrix meets input inputs[j]; where that is below 0 it meets none, and may
/// hold any finite values. On the host. Empty: column j meets input j.
struct ColumnOrder {
  std::span<const std::int32_t> inputs;
  std::int64_t k = 0;  // how many inputs there are
};

enum class GateKind : std::uint8_t { kSilu, kGeluTanh, kGelu };

/// The end of one block and the beginning of the next: x += add, then the RMS norm of x.
struct AddNormTask {
  float* x = nullptr;          // [rows, k], the residual stream
  const float* add = nullptr;  // [rows, k], what a block gave
  const float* weight = nullptr;
  float eps = 0;
  std::int64_t rows = 0;
  std::int64_t k = 0;
};

/// Rotation of the first rotary_dim values of a head. cos/sin come from a table [max positions,
/// rotary_dim / 2].
struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  std::int64_t rotary_dim = 0;
  bool interleaved =
      false;  // pairs (2i, 2i+1) as in GGUF's llama order; else (i, i + rotary_dim / 2)
};

/// Where K and V of one layer live: pages of kPageTokens tokens, each [kv head][K then V] in the
/// kernel's own order. Page p begins at base + p * page_bytes (the layer's share of it).
enum class KvType : std::uint8_t { kF16, kBf16, kF32, kFp8, kInt8 };

struct KvLayer {
  std::byte* base = nullptr;
  std::size_t page_bytes = 0;  // distance between two pages of this layer
  KvType type = KvType::kF16;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  float k_scale = 1, v_scale = 1;  // kFp8 only: a page holds K / k_scale and V / v_scale
  /// > 0: a latent cache (MLA). One KV head, whose K are the head_dim values of a token and whose V
  /// are the first kv_rank of these, which are not stored twice.
  std::int64_t kv_rank = 0;
};

/// One sequence's rows in this step: query rows [first_row, first_row + num_rows) at positions
/// [start, start + num_rows).
struct AttentionSequence {
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::int64_t start = 0;
  std::span<const std::int32_t> pages;  // page table, covers start + num_rows tokens
};

/// An id of kDrawnId - i stands for StepRows::drawn[i].
inline constexpr std::int32_t kDrawnId = -2;

/// What all operations of a step share. The spans stay until the next step begins.
struct StepRows {
  std::span<const std::int32_t> positions;  // [rows]
  std::span<const AttentionSequence> sequences;
  std::span<const std::int32_t> ids = {};  // [rows], or empty where nothing is embedded
  /// Device memory, the same for all steps: tokens that the host need not know yet. Null: no id
  /// stands for one.
  const std::int32_t* drawn = nullptr;
};

/// After the QKV product: adds nothing, normalises heads if asked, rotates Q and K, stores K and V,
/// keeps Q for Attention.
struct QkvTask {
  float* q = nullptr;  // [rows, q_heads, head_dim], rotated in place
  float* k = nullptr;  // [rows, kv_heads, head_dim], rotated in place
  const float* v = nullptr;
  std::int64_t ldq = 0, ldk = 0, ldv = 0;
  std::int64_t q_heads = 0;
  const float* q_norm = nullptr;  // [head_dim] RMS weights, or null
  const float* k_norm = nullptr;
  float norm_eps = 0;
  RopeTable rope;
  StepRows step;  // as given to BeginStep
  KvLayer kv;
};

/// After the products of latent attention: the latent is normed and stored with its rotated key,
/// the rotated part of each query head goes behind the part that HeadMatMul has brought into the
/// latent space.
struct LatentTask {
  const float* kv = nullptr;  // [rows, kv.head_dim], rows ldkv apart: latent, then key
  std::int64_t ldkv = 0;
  const float* norm = nullptr;  // [kv_rank] RMS weights
  float norm_eps = 0;
  const float* q_rope = nullptr;  // [rows, q_heads, rotary_dim], heads q_rope_head apart
  std::int64_t ldq_rope = 0, q_rope_head = 0;
  std::int64_t q_heads = 0;
  float* q = nullptr;  // [rows, q_heads, head_dim]: the last rotary_dim values of each head
  std::int64_t ldq = 0;
  RopeTable rope;  // rotary_dim = head_dim - kv_rank
  StepRows step;   // as given to BeginStep
  KvLayer layer;   // with kv_rank
};

/// y[row, head] = W_head x[row, head], a matrix of its own for every head: rows [head * n, head * n
/// + n) of `weight` [heads * n, k]. n is a multiple of 32.
struct HeadTask {
  const PackedMatrix* weight = nullptr;
  std::int64_t heads = 0;
  std::int64_t rows = 0;
  const float* x = nullptr;  // [rows, heads, k], rows ldx, heads x_head floats apart
  std::int64_t ldx = 0, x_head = 0;
  float* y = nullptr;  // [rows, heads, n], rows ldy, heads y_head floats apart
  std::int64_t ldy = 0, y_head = 0;
};

/// How many CUDA graphs a device has recorded and how often it has replayed one.
struct GraphCounts {
  std::uint64_t recorded = 0;
  std::uint64_t replayed = 0;
};

/// The largest step there will be, and the shape of its attention.
struct StepLimits {
  std::int64_t rows = 0;
  std::int64_t sequences = 0;
  std::int64_t pages_per_sequence = 0;
  std::span<const std::int32_t> kv_head_of;  // as AttentionTask's
  std::int64_t head_dim = 0;                 // of AttentionTask's y
  /// Lists of ids, of up to `rows` each, that Embed is given in a step between two waits.
  std::int64_t row_lists = 1;
  /// Rows of the steps that are recorded as graphs, ascending, at most `rows`; empty: none.
  std::span<const std::int32_t> graph_sizes;
  /// A row's bits must not depend on how many rows of its sequence come with it.
  bool batch_invariant = false;
};

/// The embedding as Embed reads it: `rows` in place, or in `copy`.
struct EmbeddingTable {
  DType type = DType::kF32;
  const std::byte* rows = nullptr;
  Memory copy;
};

/// Over a latent cache there are no softcap, window and sinks.
struct AttentionTask {
  const float* q = nullptr;  // [rows, q_heads, head_dim]
  std::int64_t ldq = 0;
  std::int64_t q_heads = 0;
  /// Local KV head of each local query head, [q_heads], non-decreasing.
  std::span<const std::int32_t> kv_head_of;
  std::span<const AttentionSequence> sequences;  // as given to BeginStep
  KvLayer kv;
  float scale = 1;
  float softcap = 0;             // 0: none
  std::int64_t window = 0;       // tokens seen including itself; 0: all
  const float* sinks = nullptr;  // [q_heads] or null
  float* y = nullptr;            // [rows, q_heads, head_dim]; over a latent cache kv_rank
  std::int64_t ldy = 0;
};

/// The top_k best experts of each row, best first (ties: the lower index), and their weights. With
/// `bias` or groups the best are those of the greatest score + bias; the weights come from the
/// scores alone.
struct RouteTask {
  const float* logits = nullptr;  // [rows, experts]
  std::int64_t rows = 0;
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  bool sigmoid = false;  // scores are sigmoids, else a softmax
  bool softmax_before_topk = true;
  bool renormalize = true;
  float routed_scale = 1;
  const float* bias = nullptr;  // [experts] or null
  /// Experts are in `groups` runs of equally many, of which only the top_groups best are looked at;
  /// a group is as good as the sum of its `group_best` (1 or 2) best experts.
  std::int64_t groups = 1;
  std::int64_t top_groups = 1;
  std::int64_t group_best = 1;
  std::int32_t* expert = nullptr;  // [rows, top_k]
  float* weight = nullptr;         // [rows, top_k]
};

/// Routed experts. Weights of expert first_expert + e are gate[e], up[e] [ffn, hidden] and down[e]
/// [hidden, ffn].
struct MoeTask {
  std::span<const PackedMatrix* const> gate, up, down;
  const float* x = nullptr;  // [rows, hidden], normed input
  std::int64_t rows = 0;
  std::int64_t top_k = 0;
  std::int64_t first_expert = 0;
  /// [rows, top_k]: the expert, which may be another rank's or -1, and its weight.
  const std::int32_t* expert = nullptr;
  const float* weight = nullptr;
  GateKind gate_kind = GateKind::kSilu;
  float* y = nullptr;  // [rows, hidden] = sum over the row's experts that are here in slot order;
                       // zero when there is none
};

}  // namespace inferd::ops
