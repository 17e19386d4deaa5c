// SPDX-License-Identifier: Apache-2.0
// Products by NVIDIA's library, the mark for our own: BF16 and FP8 at the shapes of large_matmul
// and one large square. inferd itself does not use the library; here it is opened where it is
// installed. Declared below is what is called of its interface (docs.nvidia.com/cuda/cublas,
// cublasLt).
#include "bench.h"

#include <dlfcn.h>

#include <memory>
#include <type_traits>
#include <vector>

namespace inferd::gpu {
namespace {

using Handle = void*;
using Layout = void*;
using Product = void*;
constexpr int kF32 = 0, kBf16 = 14, kFp8 = 28;  // cudaDataType_t
constexpr int kCompute32F = 68;                 // cublasComputeType_t
constexpr int kTransposeA = 3, kFastSums = 25;  // cublasLtMatmulDescAttributes_t

struct Library {
  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*product_create)(Product*, int compute, int scale_type) = nullptr;
  int (*product_destroy)(Product) = nullptr;
  int (*product_set)(Product, int attribute, const void* value, std::size_t bytes) = nullptr;
  int (*layout_create)(
      Layout*, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t ld) = nullptr;
  int (*layout_destroy)(Layout) = nullptr;
  int (*multiply)(Handle,
                  Product,
                  const void* alpha,
                  const void* a,
                  Layout,
                  const void* b,
                  Layout,
                  const void* beta,
                  const void* c,
                  Layout,
                  void* d,
                  Layout,
                  const void* algorithm,
                  void* workspace,
                  std::size_t workspace_bytes,
                  kernels::cuda::Stream) = nullptr;

  bool Open() {
    void* handle = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
      handle = handle != nullptr ? handle : ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    const auto find = [handle](const char* name, auto* function) {
      *function =
          handle == nullptr
              ? nullptr
              : reinterpret_cast<std::remove_pointer_t<decltype(function)>>(::dlsym(handle, name));
      return *function != nullptr;
    };
    return find("cublasLtCreate", &create) && find("cublasLtDestroy", &destroy) &&
           find("cublasLtMatmulDescCreate", &product_create) &&
           find("cublasLtMatmulDescDestroy", &product_destroy) &&
           find("cublasLtMatmulDescSetAttribute", &product_set) &&
           find("cublasLtMatrixLayoutCreate", &layout_create) &&
           find("cublasLtMatrixLayoutDestroy", &layout_destroy) &&
           find("cublasLtMatmul", &multiply);
  }
};

Result<> Check(int status, const char* what) {
  return status == 0 ? Result<>() : Internal("{}: cuBLASLt status {}", what, status);
}

// y [m, n] = x [m, k] w^T [k, n], all in BF16 or with FP8 inputs: in the library's words, whose
// matrices are stored by columns, d [n, m] = a^T b with a [k, n] and b [k, m].
Result<> Multiply(Bench& bench,
                  const Library& library,
                  Handle handle,
                  int type,
                  std::int64_t m,
                  std::int64_t n,
                  std::int64_t k) {
  constexpr std::size_t kWorkspaceBytes = 32U << 20U;
  const std::size_t value = type == kBf16 ? 2 : 1;
  INFERD_ASSIGN(const DeviceBytes a, bench.Fill(static_cast<std::size_t>(n * k) * value));
  INFERD_ASSIGN(const DeviceBytes b, bench.Fill(static_cast<std::size_t>(m * k) * value));
  INFERD_ASSIGN(const DeviceBytes d, bench.Fill(static_cast<std::size_t>(m * n) * 2));
  INFERD_ASSIGN(const DeviceBytes workspace, bench.Fill(kWorkspaceBytes));
  Product product = nullptr;
  INFERD_TRY(Check(library.product_create(&product, kCompute32F, kF32), "describing a product"));
  const std::unique_ptr<void, int (*)(void*)> own_product(product, library.product_destroy);
  const std::int32_t transpose = 1;
  INFERD_TRY(Check(library.product_set(product, kTransposeA, &transpose, sizeof(transpose)),
                   "describing a product"));
  const auto fast = static_cast<std::int8_t>(type == kFp8 ? 1 : 0);
  INFERD_TRY(
      Check(library.product_set(product, kFastSums, &fast, sizeof(fast)), "describing a product"));
  std::vector<std::unique_ptr<void, int (*)(void*)>> layouts;
  struct Stored {
    int kind;
    std::int64_t rows, columns;
  };
  for (const auto& [kind, rows, columns] :
       {Stored{type, k, n}, Stored{type, k, m}, Stored{kBf16, n, m}}) {
    Layout layout = nullptr;
    INFERD_TRY(Check(library.layout_create(&layout,
                                           kind,
                                           static_cast<std::uint64_t>(rows),
                                           static_cast<std::uint64_t>(columns),
                                           rows),
                     "describing a matrix"));
    layouts.emplace_back(layout, library.layout_destroy);
  }
  const float one = 1;
  const float zero = 0;
  int status = 0;
  const auto seconds = bench.Seconds([&](std::int64_t) {
    status = library.multiply(handle,
                              product,
                              &one,
                              a.get(),
                              layouts[0].get(),
                              b.get(),
                              layouts[1].get(),
                              &zero,
                              d.get(),
                              layouts[2].get(),
                              d.get(),
                              layouts[2].get(),
                              nullptr,
                              workspace.get(),
                              kWorkspaceBytes,
                              bench.stream());
    return status == 0 ? kernels::cuda::Status::kOk : kernels::cuda::Status::kInvalidValue;
  });
  INFERD_TRY(Check(status, "a product"));
  INFERD_TRY(seconds);
  bench.Print(
      R"("sweep": "cublas", "type": "{}", "m": {}, "n": {}, "k": {}, "ms": {:.4f}, "tflop_s": {:.4g})",
      type == kBf16 ? "bf16" : "fp8",
      m,
      n,
      k,
      *seconds * 1e3,
      2e-12 * static_cast<double>(m) * static_cast<double>(n * k) / *seconds);
  return {};
}

}  // namespace

Result<> SweepCublas(Bench& bench) {
  Library library;
  if (bench.tiny() || !library.Open()) {
    bench.Print(R"("sweep": "cublas", "left_out": "{}")",
                bench.tiny() ? "not on the emulated device" : "libcublasLt.so is not installed");
    return {};
  }
  Handle handle = nullptr;
  INFERD_TRY(Check(library.create(&handle), "starting"));
  const std::unique_ptr<void, int (*)(void*)> own(handle, library.destroy);
  struct Shape {
    std::int64_t m, n, k;
  };
  for (const int type : {kBf16, kFp8}) {
    for (const Shape& shape : {Shape{8192, 8192, 8192},
                               Shape{512, 14'336, 4096},
                               Shape{2048, 14'336, 4096},
                               Shape{8192, 14'336, 4096}}) {
      INFERD_TRY(Multiply(bench, library, handle, type, shape.m, shape.n, shape.k));
    }
  }
  return {};
}

}  // namespace inferd::gpu
