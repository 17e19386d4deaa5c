// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's products against double, on a GPU where the library is installed, else on the emulated
// device; and the device that hands its products over.
#include "kernels/kernel_fixture.h"
#include "ops/device.h"
#include "products.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <span>
#include <string>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {
namespace {

constexpr double kTolerance = 1.5e-5;  // as our kernels: two terms have 16 bits or more

TEST(CublasLtCuda, EveryTypeAndOddShapes) {
  TestLibrary library;
  if (!library.ok()) {
    return;  // no GPU's library on this host
  }
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1, 1, 1},
                                  std::array<std::int64_t, 3>{3, 5, 7},
                                  std::array<std::int64_t, 3>{70, 33, 203},
                                  std::array<std::int64_t, 3>{65, 64, 256}}) {
      for (const bool bias : {false, true}) {
        TestProduct p(type, m, n, k, type == DType::kF32 ? 1 : 2, bias);
        const Result<bool> done = library.lt->Multiply(p.product, nullptr, true);
        ASSERT_TRUE(done.ok()) << done.error().message();
        ASSERT_TRUE(*done) << DTypeName(type) << " " << m << " " << n << " " << k;
        EXPECT_LT(p.Error(), kTolerance)
            << DTypeName(type) << " [" << m << ", " << n << ", " << k << "] bias " << bias;
      }
    }
  }
}

TEST(CublasLtCuda, Fp8WithScalesOfBothSides) {
  TestLibrary library;
  if (!library.ok()) {
    return;  // no GPU's library on this host
  }
  const DeviceArray<float> scales(std::vector<float>{0.5F, 3.0F});
  for (const bool bias : {false, true}) {
    TestProduct p(DType::kF8E4M3, 17, 32, 160, 1, bias);
    p.product.w_scale = scales.get();
    p.product.x_scale = scales.get() + 1;
    const Result<bool> done = library.lt->Multiply(p.product, nullptr, true);
    ASSERT_TRUE(done.ok()) << done.error().message();
    if (*done) {  // else the device has none
      EXPECT_LT(p.Error(1.5), 1e-5);
    }
  }
  TestProduct odd(DType::kF8E4M3, 4, 32, 40, 1, false);
  const Result<bool> done = library.lt->Multiply(odd.product, nullptr, true);
  ASSERT_TRUE(done.ok()) << done.error().message();
  EXPECT_FALSE(*done) << "40 inputs are no multiple of 16";
}

TEST(CublasLtCuda, RowsShareAPlanUpToTheNextStep) {
  EXPECT_EQ(CublasLt::RoundRows(1), 64);
  EXPECT_EQ(CublasLt::RoundRows(64), 64);
  EXPECT_EQ(CublasLt::RoundRows(65), 128);
  EXPECT_EQ(CublasLt::RoundRows(513), 1024);
  EXPECT_EQ(CublasLt::RoundRows(4097), 8192);
  TestLibrary library;
  if (!library.ok()) {
    return;  // no GPU's library on this host
  }
  std::size_t plans = 0;
  for (const std::int64_t m : {70, 65, 128, 3, 64, 70}) {
    TestProduct p(DType::kBF16, m, 16, 24, 2, false);
    ASSERT_TRUE(*library.lt->Multiply(p.product, nullptr, true));
    EXPECT_LT(p.Error(), kTolerance) << m;
    plans = std::max(plans, library.lt->plans());
  }
  EXPECT_EQ(plans, 2U);
  // A bias is another epilogue, other addresses are not.
  TestProduct p(DType::kBF16, 70, 16, 24, 2, true);
  ASSERT_TRUE(*library.lt->Multiply(p.product, nullptr, true));
  EXPECT_LT(p.Error(), kTolerance);
  EXPECT_EQ(library.lt->plans(), 3U);
}

TEST(CublasLtCuda, APlanLeavesForANewerOne) {
  TestLibrary library;
  if (!library.ok()) {
    return;  // no GPU's library on this host
  }
  for (std::int64_t n = 1; n <= static_cast<std::int64_t>(CublasLt::kMaxPlans) + 20; ++n) {
    TestProduct p(DType::kF32, 1, n, 4, 1, false);
    ASSERT_TRUE(*library.lt->Multiply(p.product, nullptr, true)) << n;
    ASSERT_LT(p.Error(), kTolerance) << n;
    ASSERT_LE(library.lt->plans(), CublasLt::kMaxPlans);
  }
  TestProduct first(DType::kF32, 1, 1, 4, 1, false);
  EXPECT_FALSE(*library.lt->Multiply(first.product, nullptr, false)) << "the oldest went";
  TestProduct last(DType::kF32, 1, 400, 4, 1, false);
  EXPECT_TRUE(*library.lt->Multiply(last.product, nullptr, false));
}

TEST(CublasLtCuda, ACapturedProductIsReplayed) {
  TestLibrary library;
  if (!library.ok()) {
    return;  // no GPU's library on this host
  }
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  TestProduct p(DType::kF16, 9, 40, 72, 2, true);
  EXPECT_FALSE(*library.lt->Multiply(p.product, stream, false)) << "there is no plan yet";
  ASSERT_TRUE(*library.lt->Multiply(p.product, stream, true));
  EXPECT_LT(p.Error(), kTolerance);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_TRUE(*library.lt->Multiply(p.product, stream, false));
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaMemset(p.product.y, 0, 40 * sizeof(float)), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_GT(p.Error(), kTolerance);
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  EXPECT_LT(p.Error(), kTolerance);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// Sets the variable for the devices that are made while it lives.
class RowsSetting {
 public:
  explicit RowsSetting(const char* rows) { setenv("INFERD_CUBLASLT_ROWS", rows, 1); }
  ~RowsSetting() { unsetenv("INFERD_CUBLASLT_ROWS"); }
};

struct DeviceProduct {
  Result<std::vector<float>> y = std::vector<float>();
  std::string description;
};

struct Asked {
  bool batch_invariant = false;
  bool alike = false;
};

// Two matrices of types a and b [n, k] over the same inputs, y [rows, 2 n], by a device.
DeviceProduct ByDevice(const char* setting,
                       DType a,
                       DType b,
                       std::int64_t rows,
                       std::int64_t n,
                       std::int64_t k,
                       const Asked& asked = {}) {
  const RowsSetting set(setting);
  const auto run = [&]() -> Result<DeviceProduct> {
    INFERD_ASSIGN(auto device, MakeDevice(kernels::cuda::kTestDevice, 1, {}));
    std::vector<std::unique_ptr<PackedMatrix>> matrices;
    kernels::TestRandom random(5);
    for (const DType type : {a, b}) {
      const auto stored = kernels::RandomRows(type, n, k, random);
      const auto row_bytes = stored.size() / static_cast<std::size_t>(n);
      INFERD_ASSIGN(auto matrix, device->Pack(type, stored, n, k, row_bytes));
      matrices.push_back(std::move(matrix));
    }
    const std::vector<std::int32_t> head_of = {0};
    StepLimits limits;
    limits.rows = rows;
    limits.sequences = 1;
    limits.pages_per_sequence = 1;
    limits.kv_head_of = head_of;
    limits.head_dim = 64;
    limits.batch_invariant = asked.batch_invariant;
    INFERD_TRY(device->Reserve(limits));
    const auto act = device->NewActivations(rows, k, kActFloat);
    const auto x = RandomFloats(static_cast<std::size_t>(rows * k), 4);
    const auto bias = RandomFloats(static_cast<std::size_t>(n), 6);
    INFERD_ASSIGN(const Memory dx, device->Allocate(x.size() * sizeof(float), "a test"));
    INFERD_ASSIGN(const Memory db, device->Allocate(bias.size() * sizeof(float), "a test"));
    INFERD_ASSIGN(
        const Memory dy,
        device->Allocate(static_cast<std::size_t>(rows * 2 * n) * sizeof(float), "a test"));
    device->Copy(dx.data(), x.data(), dx.bytes());
    device->Copy(db.data(), bias.data(), db.bytes());
    device->Quantize(dx.floats(), k, rows, act.get());
    const MatMulTask tasks[] = {{matrices[0].get(), db.floats(), dy.floats(), 2 * n, asked.alike},
                                {matrices[1].get(), nullptr, dy.floats() + n, 2 * n, asked.alike}};
    device->MatMul(*act, rows, tasks);
    DeviceProduct result;
    std::vector<float> y(dy.bytes() / sizeof(float));
    device->Copy(y.data(), dy.data(), dy.bytes());
    INFERD_TRY(device->Wait());
    result.y = std::move(y);
    result.description = device->Describe();
    return result;
  };
  Result<DeviceProduct> result = run();
  return result.ok() ? *std::move(result) : DeviceProduct{result.error(), ""};
}

double Difference(const DeviceProduct& got, const DeviceProduct& want) {
  EXPECT_TRUE(got.y.ok() && want.y.ok());
  if (!got.y.ok() || !want.y.ok()) {
    return HUGE_VAL;
  }
  return kernels::cuda::RelativeError(*got.y, std::vector<double>(want.y->begin(), want.y->end()));
}

TEST(CublasLtCuda, TheDeviceHandsItTheProductsOfManyRows) {
  for (const auto& [a, b] : {std::pair(DType::kBF16, DType::kF16),
                             std::pair(DType::kF16, DType::kF16),
                             std::pair(DType::kF32, DType::kBF16),
                             std::pair(DType::kQ8_0, DType::kBF16)}) {
    const auto own = ByDevice("0", a, b, 5, 20, 64);
    const auto library = ByDevice("5", a, b, 5, 20, 64);
    ASSERT_TRUE(library.y.ok()) << library.y.error().message();
    EXPECT_EQ(own.description.find("cuBLASLt"), std::string::npos);
    EXPECT_LT(Difference(library, own), 2e-5) << DTypeName(a) << " " << DTypeName(b);
    EXPECT_EQ(*ByDevice("6", a, b, 5, 20, 64).y, *own.y) << "too few rows";
    EXPECT_EQ(*ByDevice("1", a, b, 5, 20, 64, {.batch_invariant = true}).y, *own.y);
    EXPECT_EQ(*ByDevice("1", a, b, 5, 20, 64, {.alike = true}).y, *own.y);
  }
}

TEST(CublasLtCuda, MoreRowsThanAreConvertedAtOnce) {
  constexpr std::int64_t kRows = 2300;
  const auto own = ByDevice("0", DType::kBF16, DType::kF16, kRows, 4, 8);
  const auto library = ByDevice("1", DType::kBF16, DType::kF16, kRows, 4, 8);
  EXPECT_LT(Difference(library, own), 2e-5);
}

TEST(CublasLtCuda, RefusesASettingThatIsNoNumber) {
  for (const char* const setting : {"", "-1", "many", "1.5"}) {
    const auto refused = ByDevice(setting, DType::kBF16, DType::kBF16, 2, 4, 8);
    ASSERT_FALSE(refused.y.ok()) << setting;
    EXPECT_EQ(refused.y.error().code(), Code::kInvalidArgument);
    EXPECT_NE(refused.y.error().message().find("INFERD_CUBLASLT_ROWS"), std::string::npos);
  }
}

TEST(CublasLtApi, ALibraryThatIsNotThereIsNamed) {
  const std::array<const char*, 2> libraries = {"libno-such-library.so.1", "libnor-this.so"};
  const auto opened = OpenCublasLt(libraries);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code(), Code::kUnavailable);
  EXPECT_NE(opened.error().message().find("libno-such-library.so.1"), std::string::npos);
  EXPECT_NE(opened.error().message().find("LD_LIBRARY_PATH"), std::string::npos);
}

std::size_t g_version = 0;
std::size_t Version() { return g_version; }

TEST(CublasLtApi, OldAndPartLibrariesAreRefused) {
  const auto find = [](const char* name) {
    return std::string_view(name) == "cublasLtGetVersion" ? reinterpret_cast<void*>(&Version)
                                                          : nullptr;
  };
  g_version = 110'900;
  const auto old = FindCublasLt(find, "libcublasLt.so.11");
  ASSERT_FALSE(old.ok());
  EXPECT_EQ(old.error().message(),
            "libcublasLt.so.11 is cuBLASLt 11.9.0; 12.0.0 or later is needed");
  g_version = 130'002;
  const auto part = FindCublasLt(find, "libcublasLt.so.13");
  ASSERT_FALSE(part.ok());
  EXPECT_EQ(part.error().message(), "libcublasLt.so.13 has no function cublasLtGetStatusName");
}

}  // namespace
}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
