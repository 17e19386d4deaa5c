// SPDX-License-Identifier: Apache-2.0
// 8-bit weights and activations on the device against the scheme in plain C++: activations rounded
// per token, products summed exactly, scales. Rows that are quantised as they are made have the
// bytes of rows quantised later; a row's bits do not depend on its neighbours.
#include "device_fixture.h"
#include "kernels/kernel_fixture.h"
#include "kernels/matmul/matmul_w8a8_cuda.h"
#include "kernels/rows/quantised_rows_cuda.h"
#include "kernels/rows/rows_cuda.h"
#include "kernels/types.h"

#ifdef INFERD_SIMT
#include "kernels/cuda/mma_bytes.cuh"
#endif

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace inferd::kernels::cuda {
namespace {

constexpr ByteType kTypes[] = {ByteType::kInt8, ByteType::kFp8};

float ValueOf(ByteType type, std::uint8_t byte) {
  return type == ByteType::kFp8 ? Fp8ToFloat(byte)
                                : static_cast<float>(static_cast<std::int8_t>(byte));
}

// The nearest code, of two the even one.
std::uint8_t ByteOf(ByteType type, float value) {
  if (type == ByteType::kInt8) {
    const float rounded = std::nearbyint(value);
    return static_cast<std::uint8_t>(
        static_cast<std::int8_t>(std::fmin(std::fmax(rounded, -127), 127)));
  }
  int best = 0;
  for (int code = 1; code < 127; ++code) {
    const float size = std::fabs(value);
    const float now = std::fabs(size - Fp8ToFloat(static_cast<std::uint8_t>(best)));
    const float then = std::fabs(size - Fp8ToFloat(static_cast<std::uint8_t>(code)));
    best = then < now || (then == now && code % 2 == 0) ? code : best;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

struct Rows {
  std::vector<std::uint8_t> bytes;  // [rows, pitch]
  std::vector<float> scales;
};

Rows Quantised(ByteType type, const std::vector<float>& x, std::int64_t ldx, std::int64_t k) {
  const std::int64_t pitch = QuantisedRows::PitchOf(k);
  const float top = type == ByteType::kFp8 ? 448 : 127;
  Rows rows;
  for (auto at = x.begin(); at < x.end(); at += ldx) {
    float largest = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      largest = std::fmax(largest, std::fabs(at[j]));
    }
    rows.scales.push_back(largest / top);
    for (std::int64_t j = 0; j < pitch; ++j) {
      const float inverse = largest == 0 ? 0 : top / largest;
      rows.bytes.push_back(j < k ? ByteOf(type, at[j] * inverse) : std::uint8_t{0});
    }
  }
  return rows;
}

// Room on the device for rows of bytes.
class DeviceRows {
 public:
  DeviceRows(ByteType type, std::int64_t rows, std::int64_t k)
      : type_(type),
        pitch_(QuantisedRows::PitchOf(k)),
        bytes_(static_cast<std::size_t>(rows * pitch_)),
        scales_(static_cast<std::size_t>(rows)) {}
  explicit DeviceRows(ByteType type, const Rows& rows, std::int64_t k)
      : DeviceRows(type, static_cast<std::int64_t>(rows.scales.size()), k) {
    bytes_.Upload(rows.bytes);
    scales_.Upload(rows.scales);
  }
  QuantisedRows args(float* y = nullptr, std::int64_t ldy = 0) const {
    return {type_, bytes_.get(), pitch_, scales_.get(), y, ldy};
  }
  Rows Download() const { return {bytes_.Download(), scales_.Download()}; }

 private:
  ByteType type_;
  std::int64_t pitch_;
  DeviceArray<std::uint8_t> bytes_;
  DeviceArray<float> scales_;
};

struct Shape {
  std::int64_t rows, k, ld;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {3, 31, 31}, {2, 64, 70}, {4, 897, 900}, {5, 1024, 1024}};

TEST(W8A8Cuda, RowsAreRoundedPerToken) {
  for (const ByteType type : kTypes) {
    for (const Shape s : kShapes) {
      auto x = RandomFloats(static_cast<std::size_t>(s.rows * s.ld), 1, 3);
      std::fill(x.begin() + (s.rows - 1) * s.ld, x.end(), s.rows > 1 ? 0.0F : -2.5F);
      const DeviceArray<float> dx(x);
      const DeviceRows out(type, s.rows, s.k);
      EXPECT_OK(QuantiseRows(dx.get(), s.ld, s.rows, s.k, out.args(), nullptr));
      const Rows want = Quantised(type, x, s.ld, s.k);
      const Rows got = out.Download();
      EXPECT_EQ(got.scales, want.scales) << s.k;
      EXPECT_EQ(got.bytes, want.bytes) << s.k;
    }
  }
}

TEST(W8A8Cuda, WhatIsNotANumberStaysVisible) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const ByteType type : kTypes) {
    std::vector<float> x(4 * 40, 1.0F);
    x[7] = NAN;
    x[8] = 3e38F;
    x[50] = -kInfinity;
    std::fill(x.begin() + 120, x.end(), 0.0F);
    x[130] = 1e-38F;
    const DeviceArray<float> dx(x);
    const DeviceRows out(type, 4, 40);
    EXPECT_OK(QuantiseRows(dx.get(), 40, 4, 40, out.args(), nullptr));
    const Rows got = out.Download();
    EXPECT_TRUE(std::isnan(got.scales[0]));
    EXPECT_EQ(got.scales[1], kInfinity);
    EXPECT_TRUE(std::isfinite(got.scales[2]));
    EXPECT_EQ(std::vector<std::uint8_t>(got.bytes.begin() + 3 * 48, got.bytes.end()),
              std::vector<std::uint8_t>(48, 0))
        << "too small for a scale";
  }
}

TEST(W8A8Cuda, NormsThatQuantiseAreNormsThenQuantised) {
  for (const ByteType type : kTypes) {
    for (const bool residual : {false, true}) {
      for (const Shape s : kShapes) {
        const auto count = static_cast<std::size_t>(s.rows * s.ld);
        const auto x = RandomFloats(count, 2);
        const auto add = RandomFloats(count, 3);
        const auto weight = RandomFloats(static_cast<std::size_t>(s.k), 4);
        const DeviceArray<float> dx(x), dx2(x), dadd(add), dw(weight);
        const DeviceArray<float> y(static_cast<std::size_t>(s.rows * s.k)), y2(y.size());
        const DeviceRows want(type, s.rows, s.k), got(type, s.rows, s.k);
        if (residual) {
          EXPECT_OK(AddRmsNorm(dx.get(),
                               s.ld,
                               dadd.get(),
                               s.ld,
                               dw.get(),
                               1e-5F,
                               s.rows,
                               s.k,
                               y.get(),
                               s.k,
                               nullptr));
        } else {
          EXPECT_OK(RmsNorm(dx.get(), s.ld, dw.get(), 1e-5F, s.rows, s.k, y.get(), s.k, nullptr));
        }
        EXPECT_OK(QuantiseRows(y.get(), s.k, s.rows, s.k, want.args(), nullptr));
        EXPECT_OK(RmsNormQuantised(dx2.get(),
                                   s.ld,
                                   residual ? dadd.get() : nullptr,
                                   s.ld,
                                   dw.get(),
                                   1e-5F,
                                   s.rows,
                                   s.k,
                                   got.args(y2.get(), s.k),
                                   nullptr));
        EXPECT_EQ(got.Download().bytes, want.Download().bytes) << s.k;
        EXPECT_EQ(got.Download().scales, want.Download().scales) << s.k;
        EXPECT_EQ(y2.Download(), y.Download()) << s.k;
        EXPECT_EQ(dx2.Download(), dx.Download()) << s.k;
      }
    }
  }
}

TEST(W8A8Cuda, GatesThatQuantiseAreGatesThenQuantised) {
  for (const ByteType type : kTypes) {
    for (const Gate kind : {Gate::kSilu, Gate::kGeluTanh, Gate::kGelu}) {
      for (const Shape s : kShapes) {
        const auto count = static_cast<std::size_t>(s.rows * s.ld);
        const DeviceArray<float> gate(RandomFloats(count, 5, 4)), up(RandomFloats(count, 6));
        const DeviceArray<float> y(static_cast<std::size_t>(s.rows * s.k)), y2(y.size());
        const DeviceRows want(type, s.rows, s.k), got(type, s.rows, s.k);
        EXPECT_OK(GateMul(kind, gate.get(), up.get(), s.ld, s.rows, s.k, y.get(), s.k, nullptr));
        EXPECT_OK(QuantiseRows(y.get(), s.k, s.rows, s.k, want.args(), nullptr));
        EXPECT_OK(GateMulQuantised(
            kind, gate.get(), up.get(), s.ld, s.rows, s.k, got.args(y2.get(), s.k), nullptr));
        EXPECT_EQ(got.Download().bytes, want.Download().bytes) << s.k;
        EXPECT_EQ(got.Download().scales, want.Download().scales) << s.k;
        EXPECT_EQ(y2.Download(), y.Download()) << s.k;
      }
    }
  }
}

TEST(W8A8Cuda, RowsOfAnotherPitchAreRefused) {
  const DeviceArray<float> x(20), scales(1);
  const DeviceArray<std::uint8_t> bytes(32);
  const QuantisedRows rows{ByteType::kInt8, bytes.get(), 20, scales.get(), nullptr, 0};
  EXPECT_EQ(QuantiseRows(x.get(), 20, 1, 20, rows, nullptr), Status::kInvalidValue);
}

struct Product {
  std::int64_t m, n, k;
};

struct Inputs {
  std::vector<std::uint8_t> w;
  std::vector<float> w_scales, bias;
  Rows x;
};

std::vector<std::uint8_t> RandomBytes(ByteType type, std::int64_t count, TestRandom& random) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
  for (std::uint8_t& byte : bytes) {
    byte = static_cast<std::uint8_t>(random.Next());
    if (type == ByteType::kFp8 && (byte & 0x7f) == 0x7f) {
      byte = 0x7e;  // 448: 0x7f is NaN
    }
  }
  return bytes;
}

Inputs MakeInputs(ByteType type, const Product& p) {
  TestRandom random(static_cast<unsigned>(p.m + p.n + p.k));
  Inputs inputs;
  inputs.w = RandomBytes(type, p.n * p.k, random);
  inputs.w_scales = RandomFloats(static_cast<std::size_t>(p.n), 7, 0.01F);
  inputs.bias = RandomFloats(static_cast<std::size_t>(p.n), 8);
  inputs.x.scales = RandomFloats(static_cast<std::size_t>(p.m), 9, 0.02F);
  const std::int64_t pitch = QuantisedRows::PitchOf(p.k);
  for (std::int64_t row = 0; row < p.m; ++row) {
    const auto bytes = RandomBytes(type, p.k, random);
    inputs.x.bytes.insert(inputs.x.bytes.end(), bytes.begin(), bytes.end());
    inputs.x.bytes.resize(static_cast<std::size_t>((row + 1) * pitch));
  }
  return inputs;
}

// The first `m` rows.
std::vector<float> Multiply(
    ByteType type, const Product& p, const Inputs& inputs, std::int64_t m, bool with_bias) {
  std::vector<std::byte> rows(inputs.w.size());
  std::memcpy(rows.data(), inputs.w.data(), rows.size());
  const DeviceArray<std::byte> w(rows);
  const DeviceArray<float> w_scales(inputs.w_scales), bias(inputs.bias);
  const DeviceRows x(type, inputs.x, p.k);
  const DeviceArray<float> y(static_cast<std::size_t>(m * p.n));
  MatMulW8A8Args args;
  args.w = w.get();
  args.n = p.n;
  args.k = p.k;
  args.w_scales = w_scales.get();
  args.x = x.args();
  args.m = m;
  args.bias = with_bias ? bias.get() : nullptr;
  args.y = y.get();
  args.ldy = p.n;
  EXPECT_OK(MatMulW8A8(args, nullptr));
  return y.Download();
}

// Every size of the small and of the tiled kernel, rows of W that are not aligned, quarters of k
// that are empty.
constexpr Product kProducts[] = {{1, 16, 64},
                                 {3, 17, 31},
                                 {8, 40, 128},
                                 {9, 5, 100},
                                 {32, 33, 272},
                                 {33, 70, 192},
                                 {65, 64, 16},
                                 {130, 130, 1000}};

TEST(W8A8Cuda, Int8ProductsAreExact) {
  for (const Product& p : kProducts) {
    const Inputs inputs = MakeInputs(ByteType::kInt8, p);
    const std::int64_t pitch = QuantisedRows::PitchOf(p.k);
    for (const bool with_bias : {false, true}) {
      std::vector<float> want;
      for (std::int64_t row = 0; row < p.m; ++row) {
        for (std::int64_t i = 0; i < p.n; ++i) {
          std::int64_t sum = 0;
          for (std::int64_t j = 0; j < p.k; ++j) {
            sum +=
                static_cast<std::int8_t>(inputs.w[static_cast<std::size_t>(i * p.k + j)]) *
                static_cast<std::int8_t>(inputs.x.bytes[static_cast<std::size_t>(row * pitch + j)]);
          }
          const float of_row =
              static_cast<float>(sum) * inputs.x.scales[static_cast<std::size_t>(row)];
          const auto at = static_cast<std::size_t>(i);
          want.push_back(std::fma(of_row, inputs.w_scales[at], with_bias ? inputs.bias[at] : 0.0F));
        }
      }
      EXPECT_EQ(Multiply(ByteType::kInt8, p, inputs, p.m, with_bias), want)
          << p.m << " x " << p.n << " x " << p.k;
    }
  }
}

TEST(W8A8Cuda, Int8ProductsOfTheLargestSizesFit) {
  const Product p{1, 1, MatMulW8A8Args::kMostInt8Columns};
  Inputs inputs = MakeInputs(ByteType::kInt8, p);
  std::fill(inputs.w.begin(), inputs.w.end(), std::uint8_t{0x80});
  std::fill(inputs.x.bytes.begin(), inputs.x.bytes.begin() + p.k, std::uint8_t{0x80});
  inputs.x.scales = inputs.w_scales = {1};
  EXPECT_EQ(Multiply(ByteType::kInt8, p, inputs, 1, false),
            std::vector<float>{16384.0F * static_cast<float>(p.k)});
  MatMulW8A8Args args;
  args.w_scales = inputs.w_scales.data();  // not read
  args.k = p.k + 1;
  args.x.pitch = QuantisedRows::PitchOf(args.k);
  EXPECT_EQ(MatMulW8A8(args, nullptr), Status::kInvalidValue);
}

TEST(W8A8Cuda, Fp8ProductsMatchDouble) {
  for (const Product& p : kProducts) {
    const Inputs inputs = MakeInputs(ByteType::kFp8, p);
    const std::int64_t pitch = QuantisedRows::PitchOf(p.k);
    std::vector<double> want;
    for (std::int64_t row = 0; row < p.m; ++row) {
      for (std::int64_t i = 0; i < p.n; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < p.k; ++j) {
          sum += static_cast<double>(
                     ValueOf(ByteType::kFp8, inputs.w[static_cast<std::size_t>(i * p.k + j)])) *
                 ValueOf(ByteType::kFp8, inputs.x.bytes[static_cast<std::size_t>(row * pitch + j)]);
        }
        const auto at = static_cast<std::size_t>(i);
        want.push_back(sum * inputs.x.scales[static_cast<std::size_t>(row)] * inputs.w_scales[at] +
                       inputs.bias[at]);
      }
    }
    // A GPU's tensor cores keep some 13 bits of the sum of a chunk.
    EXPECT_LT(RelativeError(Multiply(ByteType::kFp8, p, inputs, p.m, true), want), 3e-4)
        << p.m << " x " << p.n << " x " << p.k;
  }
}

TEST(W8A8Cuda, ARowsBitsDoNotDependOnItsNeighbours) {
  for (const ByteType type : kTypes) {
    for (const std::int64_t k : {48, 130, 960}) {
      const Product p{100, 24, k};
      const Inputs inputs = MakeInputs(type, p);
      const auto all = Multiply(type, p, inputs, p.m, true);
      for (const std::int64_t m : {1, 8, 20, 33}) {
        EXPECT_EQ(Multiply(type, p, inputs, m, true),
                  std::vector<float>(all.begin(), all.begin() + m * p.n))
            << m << " rows of " << k;
      }
    }
  }
}

#ifdef INFERD_SIMT
template <bool kAsHalf>
__global__ void OneMmaKernel(const std::uint32_t* a, const std::uint32_t* b, float* d) {
  const int lane = static_cast<int>(threadIdx.x);
  const std::uint32_t mine[4] = {a[lane], a[32 + lane], a[64 + lane], a[96 + lane]};
  float sum[4] = {1, 2, 3, 4};
  if (kAsHalf) {
    MmaFp8AsHalf(sum, mine, b[lane], b[32 + lane]);
  } else {
    MmaFp8(sum, mine, b[lane], b[32 + lane]);
  }
  for (int i = 0; i < 4; ++i) {
    d[i * 32 + lane] = sum[i];
  }
}

// What devices before sm_89 do; a GPU of the tests may be a later one.
TEST(W8A8Cuda, HalvesStandForE4M3) {
  TestRandom random(10);
  std::vector<std::uint32_t> a(128), b(64);
  for (auto* words : {&a, &b}) {
    const auto bytes =
        RandomBytes(ByteType::kFp8, static_cast<std::int64_t>(4 * words->size()), random);
    std::memcpy(words->data(), bytes.data(), bytes.size());
  }
  const DeviceArray<std::uint32_t> da(a), db(b);
  const DeviceArray<float> bytes(128), halves(128);
  EXPECT_OK(LAUNCH_KERNEL(
      &OneMmaKernel<false>, dim3(1), dim3(32), 0, nullptr, da.get(), db.get(), bytes.get()));
  EXPECT_OK(LAUNCH_KERNEL(
      &OneMmaKernel<true>, dim3(1), dim3(32), 0, nullptr, da.get(), db.get(), halves.get()));
  const auto want = bytes.Download();
  EXPECT_LT(RelativeError(halves.Download(), {want.begin(), want.end()}), 1e-6);
}
#endif

}  // namespace
}  // namespace inferd::kernels::cuda
