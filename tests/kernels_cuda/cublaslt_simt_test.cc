// SPDX-License-Identifier: Apache-2.0
// What the emulated cuBLASLt refuses, and what its callers make of refusals.
#include "kernels/simt/cublaslt.h"
#include "kernels/simt/runtime_api.h"
#include "products.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {
namespace {

constexpr double kTolerance = 1.5e-5;

class CublasLtSimt : public testing::Test {
 protected:
  ~CublasLtSimt() override { simt::SetCublasLtFaults({}); }
  TestLibrary library_;
};

TEST_F(CublasLtSimt, WithoutAnAlgorithmNothingIsDone) {
  simt::SetCublasLtFaults({.no_algorithms = true});
  TestProduct p(DType::kBF16, 5, 16, 24, 2, true);
  const auto before = simt::CountCublasLt().products;
  for (int again = 0; again < 2; ++again) {
    const Result<bool> done = library_.lt->Multiply(p.product, nullptr, true);
    ASSERT_TRUE(done.ok()) << done.error().message();
    EXPECT_FALSE(*done);
  }
  EXPECT_EQ(simt::CountCublasLt().products, before);
}

TEST_F(CublasLtSimt, AnAlgorithmThatDoesNotFitTheRowsIsChosenAnew) {
  simt::SetCublasLtFaults({.exact_shapes = true});
  const auto before = simt::CountCublasLt().heuristics;
  for (const std::int64_t m : {5, 5, 9}) {
    TestProduct p(DType::kBF16, m, 16, 24, 2, false);
    ASSERT_TRUE(*library_.lt->Multiply(p.product, nullptr, true));
    EXPECT_LT(p.Error(), kTolerance);
  }
  // For 64 rows, for 5, for 9.
  EXPECT_EQ(simt::CountCublasLt().heuristics, before + 3);
  TestProduct other(DType::kBF16, 10, 16, 24, 2, false);
  EXPECT_FALSE(*library_.lt->Multiply(other.product, nullptr, false));
  TestProduct same(DType::kBF16, 9, 16, 24, 2, false);
  EXPECT_TRUE(*library_.lt->Multiply(same.product, nullptr, true));
  EXPECT_LT(same.Error(), kTolerance);
}

TEST_F(CublasLtSimt, TheHeuristicIsAskedOncePerShape) {
  const auto before = simt::CountCublasLt().heuristics;
  for (int again = 0; again < 3; ++again) {
    for (const std::int64_t m : {3, 60}) {
      TestProduct p(DType::kF16, m, 8, 16, 2, false);
      ASSERT_TRUE(*library_.lt->Multiply(p.product, nullptr, true));
    }
  }
  EXPECT_EQ(simt::CountCublasLt().heuristics, before + 1);
}

TEST_F(CublasLtSimt, ErrorsNameTheCallAndTheStatus) {
  simt::SetCublasLtFaults({.product_status = 13});
  TestProduct p(DType::kF32, 2, 4, 8, 1, false);
  const Result<bool> done = library_.lt->Multiply(p.product, nullptr, true);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().message(),
            "cublasLtMatmul of cuBLASLt 13.0.2: CUBLAS_STATUS_EXECUTION_FAILED (13)");
}

TEST_F(CublasLtSimt, MatricesMustFitTheirMemoryAndTheirRows) {
  const auto refusal = [&](auto change) {
    TestProduct p(DType::kF32, 3, 16, 24, 1, false);
    change(&p.product);
    const Result<bool> done = library_.lt->Multiply(p.product, nullptr, true);
    return done.ok() ? std::string(*done ? "done" : "not done") : done.error().message();
  };
  const auto is = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(is(refusal([](LtProduct*) {}), "done"));
  EXPECT_TRUE(is(refusal([](LtProduct* p) { p->ldx = 23; }), "INVALID_VALUE")) << "rows overlap";
  EXPECT_TRUE(is(refusal([](LtProduct* p) { p->ldy = 15; }), "INVALID_VALUE")) << "rows overlap";
  EXPECT_TRUE(is(refusal([](LtProduct* p) { p->m = 300; }), "INVALID_VALUE")) << "past x and y";
  std::vector<float> host(64);
  EXPECT_TRUE(is(refusal([&](LtProduct* p) { p->bias = host.data(); }), "INVALID_VALUE"));
  EXPECT_TRUE(is(refusal([&](LtProduct* p) { p->y = host.data(); }), "INVALID_VALUE"));
}

// As a device whose streams are lazy shows: the product is work of the stream that it names.
TEST_F(CublasLtSimt, AProductIsWorkOfItsStream) {
  if (const char* streams = std::getenv("EMU_STREAMS");
      streams == nullptr || std::strcmp(streams, "lazy") != 0) {
    return;  // what is queued has run
  }
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  TestProduct p(DType::kF32, 2, 4, 8, 1, false);
  std::vector<float> before(1), after(1);
  ASSERT_TRUE(*library_.lt->Multiply(p.product, stream, true));
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  std::memcpy(before.data(), p.product.y, sizeof(float));
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  std::memcpy(after.data(), p.product.y, sizeof(float));
  EXPECT_EQ(before[0], 7.5F) << "nobody has waited for the stream";
  EXPECT_NE(after[0], 7.5F);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(CublasLtSimt, NoAlgorithmIsLookedForInACapture) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  TestProduct p(DType::kF32, 2, 4, 8, 1, false);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  const Result<bool> done = library_.lt->Multiply(p.product, stream, true);
  EXPECT_TRUE(done.ok() && !*done);
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  (void)cudaGetLastError();
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
