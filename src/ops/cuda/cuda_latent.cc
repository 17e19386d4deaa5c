// SPDX-License-Identifier: Apache-2.0
// Latent attention (MLA) on a CUDA device: the products with a matrix per head, what goes into the
// latent cache, and the attention over it.
#include "base/check.h"
#include "kernels/attention/latent_cuda.h"
#include "ops/cuda/cuda_device.h"

#include <algorithm>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {
namespace {

namespace k = kernels::cuda;

k::LatentPages LatentPagesOf(const KvLayer& kv) {
  k::LatentPages pages;
  pages.base = kv.base;
  pages.page_bytes = static_cast<std::int64_t>(kv.page_bytes);
  pages.format = CudaDevice::FormatOf(kv.type);
  pages.kv_rank = static_cast<int>(kv.kv_rank);
  pages.rope_dim = static_cast<int>(kv.head_dim - kv.kv_rank);
  return pages;
}

}  // namespace

std::size_t CudaDevice::LatentPageBytes(KvType type, std::int64_t dim) const {
  return k::LatentBytesPerPage(FormatOf(type), dim);
}

void CudaDevice::HeadMatMul(const HeadTask& task) {
  const auto& weight = static_cast<const CudaMatrix&>(*task.weight);
  k::Matrix head = weight.Args();
  head.n = weight.n() / task.heads;
  INFERD_CHECK(head.n * task.heads == weight.n() && head.scales == nullptr);
  for (std::int64_t h = 0; h < task.heads && Use(); ++h) {
    Check(k::MatMul(head,
                    task.x + h * task.x_head,
                    task.ldx,
                    task.rows,
                    nullptr,
                    false,
                    task.y + h * task.y_head,
                    task.ldy,
                    stream_),
          "a product with a head's weights");
    head.rows += head.n * head.row_bytes;
  }
}

void CudaDevice::LatentPost(const LatentTask& task) {
  INFERD_CHECK(task.step.positions.data() == step_.host.positions.data());
  if (!Use()) {
    return;
  }
  k::LatentPostArgs args;
  args.kv = task.kv;
  args.ldkv = task.ldkv;
  args.norm = task.norm;
  args.norm_eps = task.norm_eps;
  args.q_rope = task.q_rope;
  args.ldq_rope = task.ldq_rope;
  args.q_rope_head = task.q_rope_head;
  args.heads = static_cast<int>(task.q_heads);
  args.q = task.q;
  args.ldq = task.ldq;
  args.cos = task.rope.cos;
  args.sin = task.rope.sin;
  args.interleaved = task.rope.interleaved;
  args.step = step_.rows;
  args.kv_pages = LatentPagesOf(task.layer);
  Check(k::LatentPost(args, stream_), "storing the latent");
}

void CudaDevice::AttendLatent(const AttentionTask& task) {
  k::LatentArgs args;
  args.ldq = task.ldq;
  args.heads = static_cast<int>(task.q_heads);
  args.kv = LatentPagesOf(task.kv);
  args.scale = task.scale;
  args.ldy = task.ldy;
  args.workspace = workspace_.floats();
  for (const AttentionRun& run : step_.runs) {
    args.max_tokens = run.tokens;
    for (std::int64_t done = 0; done < run.num_rows && Use(); done += workspace_rows_) {
      const std::int64_t row = run.first_row + done;
      args.q = task.q + row * task.ldq;
      args.y = task.y + row * task.ldy;
      args.step = step_.rows;
      args.step.rows = std::min(workspace_rows_, run.num_rows - done);
      args.step.position += row;
      args.step.sequence += row;
      Check(k::LatentRows(args, stream_), "attention over the latent");
    }
  }
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
