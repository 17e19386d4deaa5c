// SPDX-License-Identifier: Apache-2.0
// What follows the QKV product (head norms, rotation, storing K and V) and attention, on the CPU
// device.
#include "base/check.h"
#include "kernels/attention/kv_page.h"
#include "ops/cpu_device.h"
#include "ops/cpu_region.h"

#include <algorithm>

namespace inferd::ops {
namespace {

std::size_t ValueBytes(KvType type) {
  return type == KvType::kF32 ? 4 : type == KvType::kF16 || type == KvType::kBf16 ? 2 : 1;
}

// One head's share of a page of one layer.
std::size_t HeadBytes(KvType type, std::int64_t head_dim) {
  return kernels::HeadPageBytes(ValueBytes(type), head_dim) +
         (type == KvType::kInt8 ? kernels::kHeadScaleBytes : 0);
}

auto StorerOf(KvType type) {
  switch (type) {
    case KvType::kF16:
      return kernels::StoreKvHalf;
    case KvType::kBf16:
      return kernels::StoreKvBf16;
    case KvType::kFp8:
      return kernels::StoreKvFp8;
    case KvType::kInt8:
      return kernels::StoreKvInt8;
    case KvType::kF32:
      break;
  }
  return kernels::StoreKvFloat;
}

kernels::KvValue ValueOf(KvType type) {
  switch (type) {
    case KvType::kF16:
      return kernels::KvValue::kF16;
    case KvType::kBf16:
      return kernels::KvValue::kBf16;
    case KvType::kFp8:
      return kernels::KvValue::kFp8;
    case KvType::kInt8:
      return kernels::KvValue::kInt8;
    case KvType::kF32:
      break;
  }
  return kernels::KvValue::kF32;
}

// The head's share of a page of the layer.
std::byte* HeadInPage(const KvLayer& kv, std::int32_t page, std::int64_t head) {
  return kv.base + static_cast<std::size_t>(page) * kv.page_bytes +
         static_cast<std::size_t>(head) * HeadBytes(kv.type, kv.head_dim);
}

void Rotate(const RopeTable& rope, std::int64_t position, const float* from, float* x) {
  const std::int64_t half = rope.rotary_dim / 2;
  const float* cos = rope.cos + position * half;
  const float* sin = rope.sin + position * half;
  const std::int64_t step = rope.interleaved ? 2 : 1;
  const std::int64_t other = rope.interleaved ? 1 : half;
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = from[i * step];
    const float b = from[i * step + other];
    x[i * step] = a * cos[i] - b * sin[i];
    x[i * step + other] = b * cos[i] + a * sin[i];
  }
}

void Multiply(const float* x, float by, std::int64_t count, float* y) {
  for (std::int64_t i = 0; i < count; ++i) {
    y[i] = x[i] * by;
  }
}

}  // namespace

std::size_t CpuDevice::KvPageBytes(KvType type,
                                   std::int64_t kv_heads,
                                   std::int64_t head_dim) const {
  return static_cast<std::size_t>(kv_heads) * HeadBytes(type, head_dim);
}

std::size_t CpuDevice::LatentPageBytes(KvType type, std::int64_t dim) const {
  return kernels::LatentPageBytes(ValueOf(type), dim);
}

void CpuDevice::PostRow(const QkvTask& task,
                        const AttentionSequence& sequence,
                        std::int64_t row) const {
  const std::int64_t dim = task.kv.head_dim;
  const std::int64_t position = task.step.positions[static_cast<std::size_t>(row)];
  const auto prepare = [&](float* head, const float* norm) {
    if (norm != nullptr) {
      kernels_.rms_norm(head, norm, task.norm_eps, dim, head);
    }
    if (task.rope.rotary_dim > 0) {
      Rotate(task.rope, position, head, head);
    }
    if (task.kv.type == KvType::kInt8) {
      kernels::SpreadHead(head, dim);
    }
  };
  for (std::int64_t h = 0; h < task.q_heads; ++h) {
    prepare(task.q + row * task.ldq + h * dim, task.q_norm);
  }
  const std::int64_t token = sequence.start + row - sequence.first_row;
  const std::int32_t page = sequence.pages[static_cast<std::size_t>(token / kernels::kPageTokens)];
  const int slot = static_cast<int>(token % kernels::kPageTokens);
  for (std::int64_t h = 0; h < task.kv.kv_heads; ++h) {
    float* k = task.k + row * task.ldk + h * dim;
    const float* v = task.v + row * task.ldv + h * dim;
    prepare(k, task.k_norm);
    float scaled[kernels::kMaxHeadDim];
    if (task.kv.type == KvType::kFp8) {
      Multiply(k, 1 / task.kv.k_scale, dim, k);
      Multiply(v, 1 / task.kv.v_scale, dim, scaled);
      v = scaled;
    }
    std::byte* head = HeadInPage(task.kv, page, h);
    StorerOf(task.kv.type)(k, v, dim, slot, head);
  }
}

void CpuDevice::ListRows(const StepRows& step) {
  sequence_of_.clear();
  for (const AttentionSequence& sequence : step.sequences) {
    INFERD_CHECK(static_cast<std::int64_t>(sequence.pages.size()) * kernels::kPageTokens >=
                 sequence.start + sequence.num_rows);
    for (std::int64_t i = 0; i < sequence.num_rows; ++i) {
      sequence_of_.push_back({&sequence, sequence.first_row + i});
    }
  }
}

void CpuDevice::QkvPost(const QkvTask& task) {
  ListRows(task.step);
  const auto rows = static_cast<std::int64_t>(sequence_of_.size());
  const std::int64_t row_values = (task.q_heads + 2 * task.kv.kv_heads) * task.kv.head_dim;
  ForEach(rows, rows * row_values * 4, [&](int, std::int64_t i) {
    const auto& [sequence, row] = sequence_of_[static_cast<std::size_t>(i)];
    PostRow(task, *sequence, row);
  });
}

void CpuDevice::PostLatentRow(const LatentTask& task,
                              const AttentionSequence& sequence,
                              std::int64_t row) const {
  const std::int64_t dim = task.layer.head_dim;
  const std::int64_t rank = task.layer.kv_rank;
  const std::int64_t position = task.step.positions[static_cast<std::size_t>(row)];
  for (std::int64_t h = 0; h < task.q_heads; ++h) {
    Rotate(task.rope,
           position,
           task.q_rope + row * task.ldq_rope + h * task.q_rope_head,
           task.q + row * task.ldq + h * dim + rank);
  }
  float token[kernels::kMaxLatentDim];
  const float* kv = task.kv + row * task.ldkv;
  kernels_.rms_norm(kv, task.norm, task.norm_eps, rank, token);
  Rotate(task.rope, position, kv + rank, token + rank);
  const std::int64_t at = sequence.start + row - sequence.first_row;
  const std::int32_t page = sequence.pages[static_cast<std::size_t>(at / kernels::kPageTokens)];
  kernels::StoreLatent(ValueOf(task.layer.type),
                       token,
                       dim,
                       static_cast<int>(at % kernels::kPageTokens),
                       task.layer.base + static_cast<std::size_t>(page) * task.layer.page_bytes);
}

void CpuDevice::LatentPost(const LatentTask& task) {
  INFERD_CHECK(task.layer.head_dim <= kernels::kMaxLatentDim &&
               task.layer.kv_rank + task.rope.rotary_dim == task.layer.head_dim);
  ListRows(task.step);
  const auto rows = static_cast<std::int64_t>(sequence_of_.size());
  ForEach(rows, rows * (task.q_heads + 1) * task.layer.head_dim, [&](int, std::int64_t i) {
    const auto& [sequence, row] = sequence_of_[static_cast<std::size_t>(i)];
    PostLatentRow(task, *sequence, row);
  });
}

void CpuDevice::AttendLatent(const AttentionTask& task, const AttentionItem& item) const {
  const float* q[kernels::kAttentionRows];
  float* y[kernels::kAttentionRows];
  std::int64_t pos[kernels::kAttentionRows];
  for (int r = 0; r < item.count; ++r) {
    const std::int64_t token = (item.first + r) / item.num_heads;
    const std::int64_t head = item.first_head + (item.first + r) % item.num_heads;
    const std::int64_t row = item.sequence->first_row + token;
    q[r] = task.q + row * task.ldq + head * task.kv.head_dim;
    y[r] = task.y + row * task.ldy + head * task.kv.kv_rank;
    pos[r] = item.sequence->start + token;
  }
  kernels::LatentArgs args = {};
  args.rows = item.count;
  args.q = q;
  args.y = y;
  args.pos = pos;
  args.dim = task.kv.head_dim;
  args.kv_rank = task.kv.kv_rank;
  args.format = ValueOf(task.kv.type);
  args.base = task.kv.base;
  args.page_bytes = task.kv.page_bytes;
  args.pages = item.sequence->pages.data();
  args.scale = task.scale;
  kernels_.attention_latent(args);
}

void CpuDevice::AttendItem(const AttentionTask& task, const AttentionItem& item) const {
  const float* q[kernels::kAttentionRows];
  float* y[kernels::kAttentionRows];
  std::int64_t pos[kernels::kAttentionRows];
  float sink[kernels::kAttentionRows];
  const std::int64_t dim = task.kv.head_dim;
  for (int r = 0; r < item.count; ++r) {
    const std::int64_t token = (item.first + r) / item.num_heads;
    const std::int64_t head = item.first_head + (item.first + r) % item.num_heads;
    const std::int64_t row = item.sequence->first_row + token;
    q[r] = task.q + row * task.ldq + head * dim;
    y[r] = task.y + row * task.ldy + head * dim;
    pos[r] = item.sequence->start + token;
    sink[r] = task.sinks != nullptr ? task.sinks[head] : 0.0f;
  }
  kernels::AttentionArgs args = {};
  args.rows = item.count;
  args.q = q;
  args.y = y;
  args.pos = pos;
  args.sink = task.sinks != nullptr ? sink : nullptr;
  args.head_dim = dim;
  args.base = HeadInPage(task.kv, 0, item.kv_head);
  args.page_bytes = task.kv.page_bytes;
  args.pages = item.sequence->pages.data();
  args.scale = task.scale;
  args.softcap = task.softcap;
  args.window = task.window;
  args.stream = item.sequence->num_rows <= 2;
  switch (task.kv.type) {
    case KvType::kF16:
      return kernels_.attention_half(args);
    case KvType::kBf16:
      return kernels_.attention_bf16(args);
    case KvType::kF32:
      return kernels_.attention_float(args);
    case KvType::kFp8:
      // Scores are sums of K's values, the result of V's.
      args.scale *= task.kv.k_scale;
      kernels_.attention_fp8(args);
      for (int r = 0; r < item.count; ++r) {
        Multiply(y[r], task.kv.v_scale, dim, y[r]);
      }
      return;
    case KvType::kInt8:
      return kernels_.attention_int8(args);
  }
}

void CpuDevice::Attention(const AttentionTask& task) {
  const bool latent = task.kv.kv_rank > 0;
  INFERD_CHECK(latent ? task.kv.head_dim <= kernels::kMaxLatentDim &&
                            task.kv.kv_rank <= kernels::kMaxHeadDim && task.window == 0 &&
                            task.softcap == 0 && task.sinks == nullptr
                      : task.kv.head_dim % 16 == 0 && task.kv.head_dim <= kernels::kMaxHeadDim);
  items_.clear();
  const auto q_heads = static_cast<std::int64_t>(task.kv_head_of.size());
  for (const AttentionSequence& sequence : task.sequences) {
    for (std::int64_t head = 0, end = 0; head < q_heads; head = end) {
      const std::int32_t kv_head = task.kv_head_of[static_cast<std::size_t>(head)];
      while (end < q_heads && task.kv_head_of[static_cast<std::size_t>(end)] == kv_head) {
        ++end;
      }
      const std::int64_t total = sequence.num_rows * (end - head);
      for (std::int64_t first = 0; first < total; first += kernels::kAttentionRows) {
        const auto count =
            static_cast<int>(std::min<std::int64_t>(kernels::kAttentionRows, total - first));
        items_.push_back({&sequence, kv_head, head, end - head, first, count});
      }
    }
  }
  // Taken from the back, where the longest tiles of a prefill are: the short ones even out the end.
  std::atomic<std::int64_t> left{static_cast<std::int64_t>(items_.size())};
  team_->Run([&](int) {
    for (std::int64_t i = left.fetch_sub(1) - 1; i >= 0; i = left.fetch_sub(1) - 1) {
      const AttentionItem& item = items_[static_cast<std::size_t>(i)];
      latent ? AttendLatent(task, item) : AttendItem(task, item);
    }
  });
}

}  // namespace inferd::ops
