// SPDX-License-Identifier: Apache-2.0
#include "kernel_fixture.h"

#include "base/check.h"

#include <sys/mman.h>

#include <cmath>
#include <cstring>

namespace inferd::kernels {
namespace {

// Nearest half of a normal positive number.
std::uint16_t ToHalf(float value) {
  const std::uint32_t bits = FloatToBits(value) + 0x1000;
  return static_cast<std::uint16_t>(((bits >> 13) & 0x3ff) | ((((bits >> 23) & 255) - 112) << 10));
}

struct ScaleFields {
  float size;
  std::vector<int> offsets;  // of half fields in a block
};

ScaleFields FieldsOf(DType type) {
  switch (type) {
    case DType::kQ4_1:
    case DType::kQ5_1:
      return {4e-3f, {0, 2}};
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {2e-4f, {0, 2}};
    case DType::kQ2_K:
      return {2e-3f, {80, 82}};
    case DType::kQ3_K:
      return {4e-4f, {108}};
    case DType::kQ6_K:
      return {1.3e-4f, {208}};
    case DType::kIQ4_XS:
      return {1.3e-4f, {0}};
    default:
      return {1e-3f, {0}};
  }
}

void FixBlock(DType type, std::byte* block, TestRandom& random) {
  const auto size = static_cast<std::size_t>(BlockBytes(type));
  const float plain = 0.03f * random.Normal();
  const std::uint16_t bf16 = FloatToBf16(plain);
  switch (type) {
    case DType::kF32:
      std::memcpy(block, &plain, size);
      return;
    case DType::kBF16:
      std::memcpy(block, &bf16, size);
      return;
    case DType::kF16: {
      const auto half =
          static_cast<std::uint16_t>(ToHalf(std::fabs(plain) + 1e-4f) | (random.Next() & 0x8000));
      std::memcpy(block, &half, size);
      return;
    }
    case DType::kF8E4M3:
      if ((block[0] & std::byte{0x7f}) == std::byte{0x7f}) {
        block[0] = std::byte{0x30};
      }
      return;
    case DType::kMXFP4:
      block[0] = static_cast<std::byte>(118 + random.Next() % 4);
      return;
    default:
      break;
  }
  const ScaleFields fields = FieldsOf(type);
  for (const int offset : fields.offsets) {
    // One scale in eight is a denormal half.
    const bool denormal = random.Next() % 8 == 0;
    const auto half = denormal ? static_cast<std::uint16_t>(random.Next() & 0x3ff)
                               : ToHalf(fields.size * (0.5f + random.Uniform()));
    std::memcpy(block + offset, &half, 2);
  }
}

}  // namespace

std::uint64_t TestRandom::Next() {
  std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

float TestRandom::Uniform() { return static_cast<float>(Next() >> 40) * 0x1p-24f; }

float TestRandom::Normal() {
  const float u = std::max(Uniform(), 1e-7f);
  return std::sqrt(-2 * std::log(u)) * std::cos(6.2831853f * Uniform());
}

GuardedBytes::GuardedBytes(std::size_t size) {
  constexpr std::size_t kPage = 4096;
  const std::size_t usable = (size + kPage - 1) / kPage * kPage;
  mapped_ = usable + kPage;
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  INFERD_CHECK(mapping_ != MAP_FAILED);
  auto* start = static_cast<std::uint8_t*>(mapping_);
  INFERD_CHECK(mprotect(start + usable, kPage, PROT_NONE) == 0);
  data_ = start + usable - size;
}

GuardedBytes::~GuardedBytes() { munmap(mapping_, mapped_); }

std::int64_t RowBytes(DType type, std::int64_t k) {
  return k / BlockElements(type) * BlockBytes(type);
}

std::vector<std::byte> RandomRows(DType type, std::int64_t n, std::int64_t k, TestRandom& random) {
  std::vector<std::byte> rows(static_cast<std::size_t>(n * RowBytes(type, k)));
  for (std::byte& byte : rows) {
    byte = static_cast<std::byte>(random.Next());
  }
  for (std::size_t at = 0; at < rows.size(); at += static_cast<std::size_t>(BlockBytes(type))) {
    FixBlock(type, rows.data() + at, random);
  }
  return rows;
}

std::vector<DType> WeightTypes() {
  return {DType::kF32,
          DType::kF16,
          DType::kBF16,
          DType::kF8E4M3,
          DType::kQ4_0,
          DType::kQ4_1,
          DType::kQ5_0,
          DType::kQ5_1,
          DType::kQ8_0,
          DType::kQ2_K,
          DType::kQ3_K,
          DType::kQ4_K,
          DType::kQ5_K,
          DType::kQ6_K,
          DType::kIQ4_NL,
          DType::kIQ4_XS,
          DType::kMXFP4};
}

std::vector<const KernelTable*> Tables() {
  std::vector<const KernelTable*> tables = {&ScalarKernels()};
  if (CpuHasAvx2()) {
    tables.push_back(&Avx2Kernels());
  }
  if (CpuHasAvx512()) {
    tables.push_back(&Avx512Kernels());
  }
  if (CpuHasAvx512Bf16()) {
    tables.push_back(&Avx512Bf16Kernels());
  }
  return tables;
}

}  // namespace inferd::kernels
