// SPDX-License-Identifier: Apache-2.0
// 8-bit weights and activations: the products, and the rows' way to bytes, by itself and in the
// kernels that make the rows.
#include "bench.h"
#include "kernels/matmul/matmul_w8a8_cuda.h"
#include "kernels/rows/quantised_rows_cuda.h"

namespace inferd::gpu {
namespace {

namespace k = kernels::cuda;

constexpr k::ByteType kTypes[] = {k::ByteType::kInt8, k::ByteType::kFp8};

const char* Name(k::ByteType type) { return type == k::ByteType::kInt8 ? "int8" : "fp8"; }

float* Floats(const DeviceBytes& bytes) { return reinterpret_cast<float*>(bytes.get()); }

// Rows of bytes on the device.
struct Rows {
  DeviceBytes bytes, scales;
  k::QuantisedRows args;
};

Result<Rows> MakeRows(Bench& bench, k::ByteType type, std::int64_t rows, std::int64_t columns) {
  Rows made;
  made.args.type = type;
  made.args.pitch = k::QuantisedRows::PitchOf(columns);
  INFERD_ASSIGN(made.bytes, bench.Fill(static_cast<std::size_t>(rows * made.args.pitch)));
  INFERD_ASSIGN(made.scales, bench.Fill(static_cast<std::size_t>(rows) * 4));
  made.args.values = reinterpret_cast<std::uint8_t*>(made.bytes.get());
  made.args.scales = Floats(made.scales);
  return made;
}

Result<> SweepProduct(Bench& bench, k::ByteType type, const std::vector<std::int64_t>& rows) {
  // The gate of an 8B model.
  const std::int64_t n = bench.tiny() ? 64 : 14'336;
  const std::int64_t columns = bench.tiny() ? 256 : 4096;
  const auto bytes = static_cast<std::size_t>(n * columns);
  const std::int64_t pieces = bench.Pieces(bytes);
  INFERD_ASSIGN(const DeviceBytes weights, bench.Fill(bytes * static_cast<std::size_t>(pieces)));
  INFERD_ASSIGN(const DeviceBytes scales, bench.Fill(static_cast<std::size_t>(n) * 4));
  INFERD_ASSIGN(const DeviceBytes y, bench.Fill(static_cast<std::size_t>(rows.back() * n) * 4));
  INFERD_ASSIGN(const Rows x, MakeRows(bench, type, rows.back(), columns));
  for (const std::int64_t m : rows) {
    INFERD_ASSIGN(const double seconds, bench.Seconds([&](std::int64_t i) {
      k::MatMulW8A8Args args;
      args.w = weights.get() + static_cast<std::size_t>(i % pieces) * bytes;
      args.n = n;
      args.k = columns;
      args.w_scales = Floats(scales);
      args.x = x.args;
      args.m = m;
      args.y = Floats(y);
      args.ldy = n;
      return k::MatMulW8A8(args, bench.stream());
    }));
    const auto moved = static_cast<double>(n * columns + m * columns + 4 * (n + m + m * n));
    bench.Print(
        R"("sweep": "w8a8", "kernel": "product", "type": "{}", "m": {}, "n": {}, "k": {}, "ms": {:.5f}, "gb_s": {:.4g}, "tflop_s": {:.4g})",
        Name(type),
        m,
        n,
        columns,
        seconds * 1e3,
        moved * 1e-9 / seconds,
        2e-12 * static_cast<double>(m) * static_cast<double>(n * columns) / seconds);
  }
  return {};
}

Result<> SweepQuantising(Bench& bench, k::ByteType type, std::int64_t rows) {
  const std::int64_t hidden = bench.tiny() ? 256 : 4096;
  const std::int64_t ffn = bench.tiny() ? 320 : 14'336;
  const auto floats = static_cast<std::size_t>(rows * ffn) * 4;
  INFERD_ASSIGN(const DeviceBytes x, bench.Fill(floats));
  INFERD_ASSIGN(const DeviceBytes add, bench.Fill(floats));
  INFERD_ASSIGN(const DeviceBytes weight, bench.Fill(static_cast<std::size_t>(hidden) * 4));
  INFERD_ASSIGN(const Rows out, MakeRows(bench, type, rows, hidden));
  INFERD_ASSIGN(const Rows wide, MakeRows(bench, type, rows, ffn));
  const auto print = [&](const char* kernel, double bytes, std::int64_t columns, double seconds) {
    bench.Print(
        R"("sweep": "w8a8", "kernel": "{}", "type": "{}", "rows": {}, "k": {}, "ms": {:.5f}, "gb_s": {:.4g})",
        kernel,
        Name(type),
        rows,
        columns,
        seconds * 1e3,
        bytes * static_cast<double>(rows * columns) * 1e-9 / seconds);
  };
  INFERD_ASSIGN(const double plain, bench.Seconds([&](std::int64_t) {
    return k::QuantiseRows(Floats(x), hidden, rows, hidden, out.args, bench.stream());
  }));
  print("quantise_rows", 5, hidden, plain);
  INFERD_ASSIGN(const double norm, bench.Seconds([&](std::int64_t) {
    return k::RmsNormQuantised(Floats(x),
                               hidden,
                               Floats(add),
                               hidden,
                               Floats(weight),
                               1e-5F,
                               rows,
                               hidden,
                               out.args,
                               bench.stream());
  }));
  print("add_rms_norm_quantised", 13, hidden, norm);
  INFERD_ASSIGN(const double gate, bench.Seconds([&](std::int64_t) {
    return k::GateMulQuantised(
        kernels::Gate::kSilu, Floats(x), Floats(add), ffn, rows, ffn, wide.args, bench.stream());
  }));
  print("gate_mul_quantised", 9, ffn, gate);
  return {};
}

}  // namespace

Result<> SweepW8A8(Bench& bench) {
  using Counts = std::vector<std::int64_t>;
  for (const k::ByteType type : kTypes) {
    INFERD_TRY(SweepProduct(
        bench, type, bench.tiny() ? Counts{1, 9, 70} : Counts{1, 8, 16, 32, 64, 512, 2048, 8192}));
    for (const std::int64_t rows : bench.tiny() ? Counts{3} : Counts{1, 64, 2048}) {
      INFERD_TRY(SweepQuantising(bench, type, rows));
    }
  }
  return {};
}

}  // namespace inferd::gpu
