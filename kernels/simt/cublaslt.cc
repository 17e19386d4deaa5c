// SPDX-License-Identifier: Apache-2.0
#include "kernels/simt/cublaslt.h"

#include "kernels/simt/runtime_api.h"
#include "kernels/simt/runtime_state.h"
#include "kernels/simt/runtime_streams.h"
#include "kernels/types.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace inferd::simt {
namespace {

// NVIDIA's numbers.
enum Status : int {
  kSuccess = 0,
  kNotInitialized = 1,
  kInvalidValue = 7,
  kExecutionFailed = 13,
  kNotSupported = 15
};
constexpr std::size_t kVersion = 130'002;
constexpr int kF32 = 0, kF16 = 2, kBf16 = 14, kE4M3 = 28;
constexpr int kCompute32F = 68;
constexpr unsigned kEpilogueNone = 1, kEpilogueBias = 4;
constexpr unsigned kHandleMark = 0x4c74u;
constexpr std::size_t kWorkspace = 4096;  // what algorithms here ask for, when they may

struct Handle {
  unsigned mark = kHandleMark;
};
struct Product {
  std::int32_t transpose_a = 0, transpose_b = 0;
  std::uint32_t epilogue = kEpilogueNone;
  const float* bias = nullptr;
  const float* scale_a = nullptr;
  const float* scale_b = nullptr;
  std::int8_t fast_sums = 0;
};
struct Layout {
  int type = kF32;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t ld = 0;
};
struct Preference {
  std::uint64_t workspace = 0;
  std::array<std::uint32_t, 4> alignment = {256, 256, 256, 256};  // of A, B, C, D
};

// What an algorithm's 64 bytes hold here.
struct Algorithm {
  std::uint64_t rows_a, columns_a, columns_b;
  std::uint32_t types, leading_dimensions, transposes_and_epilogue, workspace;
  std::array<std::uint32_t, 4> alignment;
};
struct AlgorithmBytes {
  std::uint64_t data[8];
};
static_assert(sizeof(Algorithm) <= sizeof(AlgorithmBytes));
struct Choice {
  AlgorithmBytes algorithm;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

struct State {
  std::mutex mutex;
  CublasLtFaults faults;
  std::atomic<std::uint64_t> heuristics{0}, products{0};
};
State& TheState() {
  static State state;
  return state;
}
CublasLtFaults Faults() {
  const std::lock_guard lock(TheState().mutex);
  return TheState().faults;
}

std::size_t ValueBytes(int type) { return type == kF32 ? 4 : type == kE4M3 ? 1 : 2; }

bool IsHandle(const Handle* handle) { return handle != nullptr && handle->mark == kHandleMark; }

// Bytes from a matrix' first value to its last one's end.
std::size_t Extent(const Layout& layout) {
  return ((layout.columns - 1) * static_cast<std::uint64_t>(layout.ld) + layout.rows) *
         ValueBytes(layout.type);
}

struct Shape {
  std::uint64_t m = 0, n = 0, k = 0;  // in the library's words: D [m, n]
};

// The product that the descriptions make; kInvalidValue where they contradict each other,
// kNotSupported where a device's library has no such product.
int ShapeOf(const Product* product,
            const Layout* a,
            const Layout* b,
            const Layout* c,
            const Layout* d,
            Shape* shape) {
  if (product == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr) {
    return kInvalidValue;
  }
  const auto op = [](const Layout& l, bool transposed) {
    return transposed ? std::pair(l.columns, l.rows) : std::pair(l.rows, l.columns);
  };
  const auto [m, k] = op(*a, product->transpose_a != 0);
  const auto [k_of_b, n] = op(*b, product->transpose_b != 0);
  const bool fits = k == k_of_b && d->rows == m && d->columns == n && c->rows == m &&
                    c->columns == n && m > 0 && n > 0 && k > 0 && c->type == d->type;
  const bool known = product->epilogue == kEpilogueNone ||
                     (product->epilogue == kEpilogueBias && product->bias != nullptr);
  if (!fits || !known) {
    return kInvalidValue;
  }
  for (const Layout* layout : {a, b, c, d}) {
    if (layout->ld < static_cast<std::int64_t>(layout->rows)) {
      return kInvalidValue;
    }
  }
  *shape = {m, n, k};
  const bool inputs = a->type == b->type &&
                      (a->type == kF32 || a->type == kF16 || a->type == kBf16 || a->type == kE4M3);
  if (!inputs || d->type != kF32) {
    return kNotSupported;
  }
  if (a->type != kE4M3) {
    return product->scale_a == nullptr && product->scale_b == nullptr ? kSuccess : kInvalidValue;
  }
  // FP8: A transposed, B not; all that is read and written at once is 16 bytes.
  const bool aligned =
      a->ld % 16 == 0 && b->ld % 16 == 0 && d->ld % 4 == 0 && k % 16 == 0 && m % 16 == 0;
  return product->transpose_a != 0 && product->transpose_b == 0 && aligned ? kSuccess
                                                                           : kNotSupported;
}

std::uint32_t Mix(std::initializer_list<std::uint64_t> values) {
  std::uint64_t hash = 1469598103934665603U;
  for (const std::uint64_t value : values) {
    hash = (hash ^ value) * 1099511628211U;
  }
  return static_cast<std::uint32_t>(hash ^ hash >> 32U);
}

Algorithm AlgorithmFor(const Product& product, const Layout& a, const Layout& b, const Layout& d) {
  const auto u = [](auto value) { return static_cast<std::uint64_t>(value); };
  return {a.rows,
          a.columns,
          b.columns,
          Mix({u(a.type), u(b.type), u(d.type)}),
          Mix({u(a.ld), u(b.ld), u(d.ld)}),
          Mix({u(product.transpose_a), u(product.transpose_b), product.epilogue}),
          0,
          {}};
}

// Whether an algorithm that was chosen for one product can do this one.
int CheckAlgorithm(const Algorithm& chosen,
                   const Product& product,
                   const Layout& a,
                   const Layout& b,
                   const Layout& d) {
  const Algorithm wanted = AlgorithmFor(product, a, b, d);
  if (chosen.rows_a != wanted.rows_a || chosen.columns_a != wanted.columns_a ||
      chosen.types != wanted.types || chosen.leading_dimensions != wanted.leading_dimensions ||
      chosen.transposes_and_epilogue != wanted.transposes_and_epilogue) {
    return kInvalidValue;
  }
  return Faults().exact_shapes && chosen.columns_b != wanted.columns_b ? kNotSupported : kSuccess;
}

float ValueOf(int type, const std::byte* at) {
  if (type == kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  if (type == kE4M3) {
    return kernels::Fp8ToFloat(static_cast<std::uint8_t>(*at));
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return type == kF16 ? kernels::HalfToFloat(bits) : kernels::Bf16ToFloat(bits);
}

// [vectors, k] floats: the rows of op(A), or the columns of op(B).
std::vector<float> Unpack(const Layout& layout, const std::byte* data, bool along_columns) {
  const std::uint64_t vectors = along_columns ? layout.columns : layout.rows;
  const std::uint64_t k = along_columns ? layout.rows : layout.columns;
  const std::size_t value = ValueBytes(layout.type);
  std::vector<float> out(vectors * k);
  for (std::uint64_t v = 0; v < vectors; ++v) {
    for (std::uint64_t j = 0; j < k; ++j) {
      const std::uint64_t row = along_columns ? j : v;
      const std::uint64_t column = along_columns ? v : j;
      const std::uint64_t at = column * static_cast<std::uint64_t>(layout.ld) + row;
      out[v * k + j] = ValueOf(layout.type, data + at * value);
    }
  }
  return out;
}

float Dot(const float* a, const float* b, std::uint64_t k) {
  std::array<float, 8> sums = {};
  std::uint64_t j = 0;
  for (; j + 8 <= k; j += 8) {
    for (std::uint64_t i = 0; i < 8; ++i) {
      sums[i] += a[j + i] * b[j + i];
    }
  }
  float sum = 0;
  for (; j < k; ++j) {
    sum += a[j] * b[j];
  }
  for (const float part : sums) {
    sum += part;
  }
  return sum;
}

// A product as it stands in the stream: everything by value, as a launch takes it.
struct Work {
  Product product;
  Layout a, b, d;
  Shape shape;
  float alpha = 1, beta = 0;
  const std::byte* a_data = nullptr;
  const std::byte* b_data = nullptr;
  const float* c_data = nullptr;
  std::int64_t ldc = 0;
  float* d_data = nullptr;
  std::byte* workspace = nullptr;
  std::size_t workspace_bytes = 0;

  void Run() const {
    if (workspace != nullptr) {
      std::memset(workspace, 0xFF, workspace_bytes);
    }
    const std::vector<float> left = Unpack(a, a_data, product.transpose_a != 0);
    const std::vector<float> right = Unpack(b, b_data, product.transpose_b == 0);
    const float scale = alpha * (product.scale_a != nullptr ? *product.scale_a : 1.0F) *
                        (product.scale_b != nullptr ? *product.scale_b : 1.0F);
    for (std::uint64_t j = 0; j < shape.n; ++j) {
      for (std::uint64_t i = 0; i < shape.m; ++i) {
        float value = scale * Dot(left.data() + i * shape.k, right.data() + j * shape.k, shape.k);
        if (beta != 0) {
          value += beta * c_data[j * static_cast<std::uint64_t>(ldc) + i];
        }
        if (product.epilogue == kEpilogueBias) {
          value += product.bias[i];
        }
        d_data[j * static_cast<std::uint64_t>(d.ld) + i] = value;
      }
    }
  }
};

// ------------------------------------------------------------------ the interface

std::size_t GetVersion() { return kVersion; }

const char* StatusName(int status) {
  switch (status) {
    case kSuccess:
      return "CUBLAS_STATUS_SUCCESS";
    case kNotInitialized:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case kInvalidValue:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case kExecutionFailed:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case kNotSupported:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_UNKNOWN";
  }
}

int Create(Handle** handle) {
  if (DeviceState() != cudaSuccess) {
    return kNotInitialized;
  }
  *handle = std::make_unique<Handle>().release();
  return kSuccess;
}
int Destroy(Handle* handle) {
  if (!IsHandle(handle)) {
    return kNotInitialized;
  }
  handle->mark = 0;
  delete handle;
  return kSuccess;
}

int ProductCreate(Product** product, int compute, int scale_type) {
  if (compute != kCompute32F || scale_type != kF32) {
    return kInvalidValue;
  }
  *product = std::make_unique<Product>().release();
  return kSuccess;
}
template <class T>
int Delete(T* what) {
  delete what;
  return kSuccess;
}

template <class T>
int Set(T* target, const void* value, std::size_t bytes) {
  if (bytes != sizeof(T) || value == nullptr) {
    return kInvalidValue;
  }
  std::memcpy(target, value, bytes);
  return kSuccess;
}

int ProductSet(Product* product, int attribute, const void* value, std::size_t bytes) {
  if (product == nullptr) {
    return kInvalidValue;
  }
  switch (attribute) {
    case 3:
      return Set(&product->transpose_a, value, bytes);
    case 4:
      return Set(&product->transpose_b, value, bytes);
    case 7:
      return Set(&product->epilogue, value, bytes);
    case 8:
      return Set(&product->bias, value, bytes);
    case 17:
      return Set(&product->scale_a, value, bytes);
    case 18:
      return Set(&product->scale_b, value, bytes);
    case 25:
      return Set(&product->fast_sums, value, bytes);
    default:
      return kInvalidValue;
  }
}

int LayoutCreate(
    Layout** layout, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t ld) {
  *layout = std::make_unique<Layout>(Layout{type, rows, columns, ld}).release();
  return kSuccess;
}
int LayoutSet(Layout* layout, int attribute, const void* value, std::size_t bytes) {
  switch (layout != nullptr ? attribute : -1) {
    case 2:
      return Set(&layout->rows, value, bytes);
    case 3:
      return Set(&layout->columns, value, bytes);
    case 4:
      return Set(&layout->ld, value, bytes);
    default:
      return kInvalidValue;
  }
}

int PreferenceCreate(Preference** preference) {
  *preference = std::make_unique<Preference>().release();
  return kSuccess;
}
int PreferenceSet(Preference* preference, int attribute, const void* value, std::size_t bytes) {
  if (preference == nullptr) {
    return kInvalidValue;
  }
  if (attribute == 1) {
    return Set(&preference->workspace, value, bytes);
  }
  return attribute >= 5 && attribute <= 8
             ? Set(&preference->alignment[static_cast<std::size_t>(attribute - 5)], value, bytes)
             : static_cast<int>(kInvalidValue);
}

int GetHeuristic(const Handle* handle,
                 const Product* product,
                 const Layout* a,
                 const Layout* b,
                 const Layout* c,
                 const Layout* d,
                 const Preference* preference,
                 int asked,
                 Choice* choices,
                 int* found) {
  if (!IsHandle(handle)) {
    return kNotInitialized;
  }
  *found = 0;
  Shape shape;
  if (const int status = ShapeOf(product, a, b, c, d, &shape); status != kSuccess) {
    return status;
  }
  if (preference == nullptr || asked < 1) {
    return kInvalidValue;
  }
  if (RefuseInCapture() != cudaSuccess || Faults().no_algorithms) {
    return kNotSupported;
  }
  if (a->type == kE4M3 &&
      *std::min_element(preference->alignment.begin(), preference->alignment.end()) < 16) {
    return kNotSupported;
  }
  Algorithm algorithm = AlgorithmFor(*product, *a, *b, *d);
  algorithm.alignment = preference->alignment;
  algorithm.workspace =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(preference->workspace, kWorkspace));
  choices[0] = {};
  std::memcpy(&choices[0].algorithm, &algorithm, sizeof(algorithm));
  choices[0].workspace = algorithm.workspace;
  choices[0].waves = 1;
  *found = 1;
  ++TheState().heuristics;
  return kSuccess;
}

int AlgoCheck(const Handle* handle,
              const Product* product,
              const Layout* a,
              const Layout* b,
              const Layout* c,
              const Layout* d,
              const AlgorithmBytes* bytes,
              Choice* result) {
  if (!IsHandle(handle)) {
    return kNotInitialized;
  }
  Shape shape;
  if (const int status = ShapeOf(product, a, b, c, d, &shape); status != kSuccess) {
    return status;
  }
  Algorithm algorithm;
  std::memcpy(&algorithm, bytes, sizeof(algorithm));
  result->workspace = algorithm.workspace;
  result->state = CheckAlgorithm(algorithm, *product, *a, *b, *d);
  return result->state;
}

bool IsAligned(const void* pointer, std::uint32_t alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0;
}

int Matmul(const Handle* handle,
           const Product* product,
           const float* alpha,
           const std::byte* a_data,
           const Layout* a,
           const std::byte* b_data,
           const Layout* b,
           const float* beta,
           const float* c_data,
           const Layout* c,
           float* d_data,
           const Layout* d,
           const AlgorithmBytes* bytes,
           std::byte* workspace,
           std::size_t workspace_bytes,
           cudaStream_t stream) {
  if (!IsHandle(handle)) {
    return kNotInitialized;
  }
  Shape shape;
  if (const int status = ShapeOf(product, a, b, c, d, &shape); status != kSuccess) {
    return status;
  }
  if (const int status = Faults().product_status; status != kSuccess) {
    return status;
  }
  if (bytes == nullptr || alpha == nullptr || beta == nullptr) {
    return kInvalidValue;  // The real one chooses by itself; ours must have chosen before.
  }
  Algorithm algorithm;
  std::memcpy(&algorithm, bytes, sizeof(algorithm));
  if (const int status = CheckAlgorithm(algorithm, *product, *a, *b, *d); status != kSuccess) {
    return status;
  }
  const bool in_memory = IsDeviceMemory(a_data, Extent(*a)) && IsDeviceMemory(b_data, Extent(*b)) &&
                         IsDeviceMemory(d_data, Extent(*d)) &&
                         (*beta == 0 || IsDeviceMemory(c_data, Extent(*c))) &&
                         (product->epilogue != kEpilogueBias ||
                          IsDeviceMemory(product->bias, shape.m * sizeof(float)));
  const bool aligned =
      IsAligned(a_data, algorithm.alignment[0]) && IsAligned(b_data, algorithm.alignment[1]) &&
      IsAligned(c_data, algorithm.alignment[2]) && IsAligned(d_data, algorithm.alignment[3]);
  const bool has_workspace =
      workspace_bytes >= algorithm.workspace &&
      (algorithm.workspace == 0 ||
       (IsDeviceMemory(workspace, workspace_bytes) && IsAligned(workspace, 256)));
  if (!in_memory || !aligned || !has_workspace) {
    return kInvalidValue;
  }
  Work work;
  work.product = *product;
  work.a = *a;
  work.b = *b;
  work.d = *d;
  work.shape = shape;
  work.alpha = *alpha;
  work.beta = *beta;
  work.a_data = a_data;
  work.b_data = b_data;
  work.c_data = c_data;
  work.ldc = c->ld;
  work.d_data = d_data;
  work.workspace = workspace;
  work.workspace_bytes = algorithm.workspace;
  if (CountLaunches(CountCaptured(stream) ? 0 : 1) != cudaSuccess) {
    return kExecutionFailed;
  }
  if (Enqueue(stream, [work] { work.Run(); }) != cudaSuccess) {
    return kExecutionFailed;
  }
  ++TheState().products;
  return kSuccess;
}

template <class Function>
void* Address(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

void* FindCublasLt(const char* name) {
  static const std::array<std::pair<std::string_view, void*>, 16> functions = {{
      {"cublasLtGetVersion", Address(GetVersion)},
      {"cublasLtGetStatusName", Address(StatusName)},
      {"cublasLtCreate", Address(Create)},
      {"cublasLtDestroy", Address(Destroy)},
      {"cublasLtMatmulDescCreate", Address(ProductCreate)},
      {"cublasLtMatmulDescDestroy", Address(Delete<Product>)},
      {"cublasLtMatmulDescSetAttribute", Address(ProductSet)},
      {"cublasLtMatrixLayoutCreate", Address(LayoutCreate)},
      {"cublasLtMatrixLayoutDestroy", Address(Delete<Layout>)},
      {"cublasLtMatrixLayoutSetAttribute", Address(LayoutSet)},
      {"cublasLtMatmulPreferenceCreate", Address(PreferenceCreate)},
      {"cublasLtMatmulPreferenceDestroy", Address(Delete<Preference>)},
      {"cublasLtMatmulPreferenceSetAttribute", Address(PreferenceSet)},
      {"cublasLtMatmulAlgoGetHeuristic", Address(GetHeuristic)},
      {"cublasLtMatmulAlgoCheck", Address(AlgoCheck)},
      {"cublasLtMatmul", Address(Matmul)},
  }};
  const auto found = std::find_if(
      functions.begin(), functions.end(), [name](const auto& f) { return f.first == name; });
  return found != functions.end() ? found->second : nullptr;
}

CublasLtCounts CountCublasLt() {
  return {TheState().heuristics.load(), TheState().products.load()};
}

void SetCublasLtFaults(const CublasLtFaults& faults) {
  const std::lock_guard lock(TheState().mutex);
  TheState().faults = faults;
}

}  // namespace inferd::simt
