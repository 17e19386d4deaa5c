// SPDX-License-Identifier: Apache-2.0
// A gated product of the CPU device has the bits of its two products and the gating that follows,
// whatever the batch, the threads and the instruction set.
#include "ops/device.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::ops {
namespace {

constexpr std::int64_t kK = 64;

std::unique_ptr<Device> MakeDevice(int threads, std::string_view isa) {
  CpuOptions options;
  options.threads = threads;
  options.isa = isa;
  Result<std::unique_ptr<Device>> device = MakeCpuDevice(options);
  return device.ok() ? std::move(device).value() : nullptr;
}

// Every aligned half, bf16 and float of these bytes is a small normal number.
std::unique_ptr<PackedMatrix> Matrix(
    Device& device, DType type, std::int64_t n, unsigned seed, std::int64_t k = kK) {
  const std::int64_t row = k / BlockElements(type) * BlockBytes(type);
  std::mt19937 generator(seed);
  std::vector<std::byte> rows(static_cast<std::size_t>(n * row));
  for (std::byte& byte : rows) {
    byte = static_cast<std::byte>((generator() & 0x9f) | 0x10);
  }
  auto packed = device.Pack(type, rows, n, k, static_cast<std::size_t>(row));
  EXPECT_TRUE(packed.ok());
  return std::move(packed).value();
}

std::vector<std::byte> Held(const Activations& act, std::int64_t rows) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows) * act.ColumnBytes(act.k()));
  act.CopyOut(rows, bytes.data());
  return bytes;
}

// n is no multiple of a panel; 515 rows take two passes, of 400 and 515 a group takes few panels.
void Compare(Device& device, DType gate_type, DType up_type, std::int64_t n, std::int64_t rows) {
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> x(static_cast<std::size_t>(rows * kK));
  std::vector<float> bias(static_cast<std::size_t>(n));
  for (std::vector<float>* values : {&x, &bias}) {
    for (float& v : *values) {
      v = uniform(generator);
    }
  }
  const auto gate = Matrix(device, gate_type, n, 1);
  const auto up = Matrix(device, up_type, n, 2);
  const auto in = device.NewActivations(rows, kK, gate->form() | up->form());
  device.Quantize(x.data(), kK, rows, in.get());
  std::vector<float> y(static_cast<std::size_t>(rows * 2 * n));
  const std::array tasks = {MatMulTask{gate.get(), bias.data(), y.data(), 2 * n},
                            MatMulTask{up.get(), nullptr, y.data() + n, 2 * n}};
  const unsigned forms = kActInt8 | kActFloat;
  const auto apart = device.NewActivations(rows, n, forms);
  device.MatMul(*in, rows, tasks);
  device.GateMul(GateKind::kGeluTanh, y.data(), y.data() + n, 2 * n, rows, n, apart.get());
  const auto together = device.NewActivations(rows, n, forms);
  device.GatedMatMul(*in, rows, GateKind::kGeluTanh, tasks, together.get());
  EXPECT_EQ(Held(*apart, rows), Held(*together, rows))
      << DTypeName(gate_type) << " and " << DTypeName(up_type) << ", " << rows << " rows of " << n;
}

TEST(CpuGated, HasTheBitsOfItsParts) {
  for (const std::string_view isa : {"scalar", "avx2", "auto"}) {
    for (const int threads : {1, 3}) {
      const std::unique_ptr<Device> device = MakeDevice(threads, isa);
      if (device == nullptr) {
        continue;  // this CPU lacks it
      }
      for (const std::int64_t rows : {1, 6, 17, 40}) {
        Compare(*device, DType::kQ8_0, DType::kQ8_0, 1000, rows);
        Compare(*device, DType::kBF16, DType::kBF16, 1000, rows);
        Compare(*device, DType::kQ5_0, DType::kF32, 40, rows);
      }
    }
  }
  const std::unique_ptr<Device> device = MakeDevice(2, "auto");
  for (const std::int64_t rows : {400, 515}) {
    Compare(*device, DType::kQ8_0, DType::kQ8_0, 1000, rows);
    Compare(*device, DType::kBF16, DType::kBF16, 1000, rows);
  }
}

// Activations of one width and form are shared: a share of the ffn may be as wide as the model. So
// many columns are several groups even of one thread, the later of which need all inputs.
TEST(CpuGated, MayReplaceItsInput) {
  constexpr std::int64_t kRows = 512, kWide = 512;
  const std::unique_ptr<Device> device = MakeDevice(1, "auto");
  const auto gate = Matrix(*device, DType::kBF16, kWide, 1, kWide);
  const auto up = Matrix(*device, DType::kBF16, kWide, 2, kWide);
  const std::vector<float> x(kRows * kWide, 0.25F);
  std::vector<float> y(kRows * 2 * kWide);
  const std::array tasks = {MatMulTask{gate.get(), nullptr, y.data(), 2 * kWide},
                            MatMulTask{up.get(), nullptr, y.data() + kWide, 2 * kWide}};
  const auto in = device->NewActivations(kRows, kWide, gate->form());
  device->Quantize(x.data(), kWide, kRows, in.get());
  const auto out = device->NewActivations(kRows, kWide, gate->form());
  device->GatedMatMul(*in, kRows, GateKind::kSilu, tasks, out.get());
  device->GatedMatMul(*in, kRows, GateKind::kSilu, tasks, in.get());
  EXPECT_EQ(Held(*in, kRows), Held(*out, kRows));
}

TEST(CpuGated, NoRowsAreNoWork) {
  const std::unique_ptr<Device> device = MakeDevice(2, "auto");
  const auto weight = Matrix(*device, DType::kQ8_0, 64, 1);
  const auto in = device->NewActivations(1, kK, kActInt8);
  const auto out = device->NewActivations(1, 64, kActInt8);
  const std::vector<std::byte> before = Held(*out, 1);
  const MatMulTask task{weight.get(), nullptr, nullptr, 64};
  device->GatedMatMul(*in, 0, GateKind::kSilu, {task, task}, out.get());
  EXPECT_EQ(Held(*out, 1), before);
}

}  // namespace
}  // namespace inferd::ops
