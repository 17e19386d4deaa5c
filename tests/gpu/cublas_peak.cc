// SPDX-License-Identifier: Apache-2.0
// Products by cuBLASLt as the device calls it, at the shapes of large_matmul and one large square:
// BF16 with inputs of one term, which is the mark for our own kernels, and of two, which is what
// the device gives it; F16, F32 and FP8.
#include "bench.h"
#include "ops/cuda/cublaslt.h"

#include <memory>
#include <vector>

namespace inferd::gpu {
namespace {

namespace lt = ops::INFERD_CUDA_NAMESPACE;

struct Kind {
  const char* name;
  DType type;
  int terms;
};

Result<> Multiply(Bench& bench,
                  lt::CublasLt& library,
                  const Kind& kind,
                  std::int64_t m,
                  std::int64_t n,
                  std::int64_t k) {
  const auto value = static_cast<std::size_t>(BlockBytes(kind.type));
  INFERD_ASSIGN(const DeviceBytes w, bench.Fill(static_cast<std::size_t>(n * k) * value));
  INFERD_ASSIGN(const DeviceBytes x,
                bench.Fill(static_cast<std::size_t>(m * k * kind.terms) * value));
  INFERD_ASSIGN(const DeviceBytes y, bench.Fill(static_cast<std::size_t>(m * n) * sizeof(float)));
  lt::LtProduct product;
  product.type = kind.type;
  product.m = m;
  product.n = n;
  product.k = k;
  product.w = w.get();
  product.x = x.get();
  product.ldx = k;
  product.terms = kind.terms;
  product.term_stride = m * k;
  product.y = reinterpret_cast<float*>(y.get());
  product.ldy = n;
  product.fast_sums = true;
  Result<bool> done = true;
  const auto seconds = bench.Seconds([&](std::int64_t) {
    done = library.Multiply(product, bench.stream(), true);
    return done.ok() && *done ? kernels::cuda::Status::kOk : kernels::cuda::Status::kInvalidValue;
  });
  if (!done.ok()) {
    return done.error();
  }
  if (!*done) {
    bench.Print(R"("sweep": "cublas", "type": "{}", "m": {}, "n": {}, "k": {}, "left_out": "{}")",
                kind.name,
                m,
                n,
                k,
                "the library has no algorithm for it");
    return {};
  }
  INFERD_TRY(seconds);
  bench.Print(
      R"("sweep": "cublas", "type": "{}", "terms": {}, "m": {}, "n": {}, "k": {}, "ms": {:.4f}, "tflop_s": {:.4g})",
      kind.name,
      kind.terms,
      m,
      n,
      k,
      *seconds * 1e3,
      2e-12 * static_cast<double>(m) * static_cast<double>(n * k) / *seconds);
  return {};
}

}  // namespace

Result<> SweepCublas(Bench& bench) {
  const Result<lt::CublasLtApi> api = lt::LoadCublasLt();
  if (!api.ok()) {
    bench.Print(R"("sweep": "cublas", "left_out": "{}")",
                "libcublasLt.so.13 or .12 is not installed");
    return {};
  }
  INFERD_ASSIGN(const DeviceBytes workspace, bench.Fill(lt::CublasLt::kWorkspaceBytes));
  INFERD_ASSIGN(const std::unique_ptr<lt::CublasLt> library,
                lt::CublasLt::Make(*api, workspace.get()));
  struct Shape {
    std::int64_t m, n, k;
  };
  const std::vector<Shape> shapes = bench.tiny() ? std::vector<Shape>{{70, 64, 256}}
                                                 : std::vector<Shape>{{8192, 8192, 8192},
                                                                      {128, 14'336, 4096},
                                                                      {512, 14'336, 4096},
                                                                      {2048, 14'336, 4096},
                                                                      {8192, 14'336, 4096}};
  for (const Kind& kind : {Kind{"bf16", DType::kBF16, 1},
                           Kind{"fp8", DType::kF8E4M3, 1},
                           Kind{"bf16", DType::kBF16, 2},
                           Kind{"f16", DType::kF16, 2},
                           Kind{"f32", DType::kF32, 1}}) {
    for (const Shape& shape : shapes) {
      INFERD_TRY(Multiply(bench, *library, kind, shape.m, shape.n, shape.k));
    }
  }
  return {};
}

}  // namespace inferd::gpu
