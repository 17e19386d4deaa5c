// SPDX-License-Identifier: Apache-2.0
// One block per row copies (and converts) the token's row of the table. Bytes: the stored row once,
// hidden floats out. The id may be one that the device has drawn and the host does not know yet.
#include "kernels/dequant/stored_values.cuh"
#include "kernels/embedding/embedding_cuda.h"

namespace inferd::kernels::cuda {
namespace {

constexpr int kThreads = 128;

template <class Stored>
__global__ void __launch_bounds__(kThreads) EmbedKernel(const std::byte* table,
                                                        std::int64_t table_rows,
                                                        std::int64_t first_id,
                                                        const std::int32_t* ids,
                                                        const std::int32_t* drawn,
                                                        int hidden,
                                                        float scale,
                                                        float* x_rows,
                                                        std::int64_t ldx) {
  const std::int32_t given = ids[blockIdx.x];
  const std::int32_t id = given <= kDrawnId && drawn != nullptr ? drawn[kDrawnId - given] : given;
  const std::int64_t at = id - first_id;
  const bool inside = at >= 0 && at < table_rows;
  const std::byte* row = table + (inside ? at * hidden * Stored::kBytes : 0);
  float* x = x_rows + blockIdx.x * ldx;
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += kThreads) {
    x[i] = inside ? Stored::Get(row, i) * scale : 0.0F;
  }
}

}  // namespace

Status Embed(DType type,
             const std::byte* table,
             std::int64_t table_rows,
             std::int64_t first_id,
             const std::int32_t* ids,
             const std::int32_t* drawn,
             std::int64_t rows,
             std::int64_t hidden,
             float scale,
             float* x,
             std::int64_t ldx,
             Stream stream) {
  if (rows == 0) {
    return Status::kOk;
  }
  const auto launch = [&](auto kernel) {
    return LAUNCH_KERNEL(kernel,
                         dim3(static_cast<unsigned>(rows)),
                         dim3(kThreads),
                         0,
                         stream,
                         table,
                         table_rows,
                         first_id,
                         ids,
                         drawn,
                         static_cast<int>(hidden),
                         scale,
                         x,
                         ldx);
  };
  switch (type) {
    case DType::kF32:
      return launch(&EmbedKernel<StoredF32>);
    case DType::kF16:
      return launch(&EmbedKernel<StoredF16>);
    case DType::kBF16:
      return launch(&EmbedKernel<StoredBf16>);
    default:
      return Status::kInvalidValue;
  }
}

}  // namespace inferd::kernels::cuda
