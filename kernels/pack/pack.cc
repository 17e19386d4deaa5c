// SPDX-License-Identifier: Apache-2.0
#include "kernels/pack/pack.h"

#include "base/check.h"
#include "kernels/dequant/dequant.h"

#include <cstring>

namespace inferd::kernels {
namespace {

bool Finite(float value) { return (FloatToBits(value) & 0x7f800000) != 0x7f800000; }

// One 32 x 32 block of a panel before its planes are split: scales as float, quants in group order.
struct PanelBlock {
  alignas(64) std::uint8_t u[1024];
  float scale[2][kPanelRows];
  float min[2][kPanelRows];
};

// Takes the bits from `shift` up of 1024 group-ordered bytes: groups p and p + 4 share a byte.
void NibblePlane(const std::uint8_t* u, int shift, std::uint8_t* out) {
  for (int i = 0; i < 512; ++i) {
    out[i] =
        static_cast<std::uint8_t>(((u[i] >> shift) & 15) | (((u[i + 512] >> shift) & 15) << 4));
  }
}

// The low `bits` bits (1 or 2) of 8 / bits groups share a byte.
void BitPlane(const std::uint8_t* u, int bits, std::uint8_t* out) {
  const int per = 8 / bits;
  const int mask = (1 << bits) - 1;
  for (int h = 0; h < bits; ++h) {
    for (int lane = 0; lane < 128; ++lane) {
      int value = 0;
      for (int i = 0; i < per; ++i) {
        value |= (u[(h * per + i) * 128 + lane] & mask) << (i * bits);
      }
      out[h * 128 + lane] = static_cast<std::uint8_t>(value);
    }
  }
}

void StoreQuants(PackForm form, const std::uint8_t* u, std::uint8_t* out) {
  switch (form) {
    case PackForm::kQ4:
    case PackForm::kQ4K:
      return NibblePlane(u, 0, out);
    case PackForm::kQ5:
    case PackForm::kQ5K:
      NibblePlane(u, 1, out);
      return BitPlane(u, 1, out + 512);
    case PackForm::kQ6K:
      NibblePlane(u, 2, out);
      return BitPlane(u, 2, out + 512);
    default:
      std::memcpy(out, u, 1024);
  }
}

// Raw scale fields of the K forms, kept as stored: the products d * sc are formed in the kernel,
// exactly.
void StoreSuperHeader(PackForm form, const std::byte* stored, int row, std::uint8_t* head) {
  if (form == PackForm::kQ6K) {
    std::memcpy(head + 2 * row, stored + 208, 2);
  } else {
    std::memcpy(head + 2 * row, stored, 2);
    std::memcpy(head + 64 + 2 * row, stored + 2, 2);
  }
}

void StoreSmallScales(PackForm form, const std::byte* stored, int j, int row, std::uint8_t* out) {
  const std::uint8_t* s = reinterpret_cast<const std::uint8_t*>(stored);
  if (form == PackForm::kQ6K) {
    out[row] = s[192 + 2 * j];
    out[32 + row] = s[192 + 2 * j + 1];
    return;
  }
  s += 4;
  if (j < 4) {
    out[row] = s[j] & 63;
    out[32 + row] = s[j + 4] & 63;
  } else {
    out[row] = static_cast<std::uint8_t>((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4));
    out[32 + row] = static_cast<std::uint8_t>((s[j + 4] >> 4) | ((s[j] >> 6) << 4));
  }
}

void StoreFloatScales(PackForm form, const PanelBlock& block, std::uint8_t* out) {
  std::memcpy(out, block.scale[0], 128);
  switch (form) {
    case PackForm::kByteScaleMin:
      std::memcpy(out + 128, block.min[0], 128);
      break;
    case PackForm::kByteTwo:
      std::memcpy(out + 128, block.scale[1], 128);
      break;
    case PackForm::kByteTwoMin:
      std::memcpy(out + 128, block.scale[1], 128);
      std::memcpy(out + 256, block.min[0], 256);
      break;
    default:
      break;
  }
}

bool IsKForm(PackForm form) {
  return form == PackForm::kQ4K || form == PackForm::kQ5K || form == PackForm::kQ6K;
}

// Where a symmetric form keeps a zero point that is not 128, the bytes are moved there.
int ByteOffset(PackForm form, int zero) {
  return form == PackForm::kByteTwo || form == PackForm::kByteScale ? 128 - zero : 0;
}

// Fills `block` with 32 values of every row, block j of the stored blocks at `stored`. Returns the
// first bad row or -1.
int GatherBlock(DType type,
                PackForm form,
                const std::byte* stored,
                std::size_t row_bytes,
                int num_rows,
                int j,
                PanelBlock* block) {
  int bad = -1;
  for (int r = 0; r < num_rows; ++r) {
    Block32 b;
    UnpackBlock(type, stored + static_cast<std::size_t>(r) * row_bytes, j, &b);
    if (const int offset = ByteOffset(form, b.zero); offset != 0) {
      for (std::uint8_t& u : b.u) {
        u = static_cast<std::uint8_t>(u + offset);
      }
    }
    for (int g = 0; g < 8; ++g) {
      std::memcpy(block->u + g * 128 + r * 4, b.u + 4 * g, 4);
    }
    for (int h = 0; h < 2; ++h) {
      block->scale[h][r] = b.scale[h];
      block->min[h][r] = b.min[h];
      if (bad < 0 && (!Finite(b.scale[h]) || !Finite(b.min[h]))) {
        bad = r;
      }
    }
  }
  return bad;
}

int PackQuantised(DType type,
                  const std::byte* rows,
                  std::size_t row_bytes,
                  int num_rows,
                  std::int64_t k,
                  std::uint8_t* out) {
  const PackForm form = FormOf(type);
  const FormLayout l = LayoutOf(form);
  const std::int64_t elements = BlockElements(type);
  const std::int64_t bytes = BlockBytes(type);
  PanelBlock block;
  std::memset(&block, 0, sizeof block);
  int bad = -1;
  for (std::int64_t i = 0; i < k; i += 32) {
    const std::byte* stored = rows + i / elements * bytes;
    const int j = static_cast<int>(i % elements / 32);
    const int found = GatherBlock(type, form, stored, row_bytes, num_rows, j, &block);
    if (found >= 0 && (bad < 0 || found < bad)) {
      bad = found;
    }
    if (l.super_header != 0 && j == 0) {
      for (int r = 0; r < num_rows; ++r) {
        StoreSuperHeader(form, stored + static_cast<std::size_t>(r) * row_bytes, r, out);
      }
      out += l.super_header;
    }
    for (int r = 0; r < num_rows; ++r) {
      const std::byte* row = stored + static_cast<std::size_t>(r) * row_bytes;
      if (IsKForm(form)) {
        StoreSmallScales(form, row, j, r, out);
      } else if (l.block_header == 64) {
        std::memcpy(out + 2 * r, row, 2);  // the stored half, first in all these types
      }
    }
    if (l.block_header > 64) {
      StoreFloatScales(form, block, out);
    }
    StoreQuants(form, block.u, out + l.block_header);
    out += l.block;
  }
  return bad;
}

template <class T>
T LoadAt(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// Values of `Stored` as `Packed`, `kPair` consecutive k of a row side by side.
template <class Stored, class Packed, int kPair, class Convert, class Check>
int PackPlain(const std::byte* rows,
              std::size_t row_bytes,
              int num_rows,
              std::int64_t k,
              std::uint8_t* out,
              Convert convert,
              Check finite) {
  int bad = -1;
  for (int r = num_rows - 1; r >= 0; --r) {
    const std::byte* row = rows + static_cast<std::size_t>(r) * row_bytes;
    bool good = true;
    for (std::int64_t i = 0; i < k; ++i) {
      const Packed value =
          convert(LoadAt<Stored>(row + i * static_cast<std::int64_t>(sizeof(Stored))));
      good = good && finite(value);
      const std::int64_t at = (i / kPair * kPanelRows + r) * kPair + i % kPair;
      std::memcpy(out + at * static_cast<std::int64_t>(sizeof(Packed)), &value, sizeof value);
    }
    bad = good ? bad : r;
  }
  return bad;
}

bool FiniteBf16(std::uint16_t value) { return (value & 0x7f80) != 0x7f80; }

}  // namespace

PackForm FormOf(DType type) {
  switch (type) {
    case DType::kF32:
      return PackForm::kF32;
    case DType::kF16:
      return PackForm::kF16;
    case DType::kBF16:
    case DType::kF8E4M3:
      return PackForm::kBf16;
    case DType::kQ8_0:
    case DType::kIQ4_NL:
      return PackForm::kQ8;
    case DType::kQ5_0:
      return PackForm::kQ5;
    case DType::kQ4_0:
      return PackForm::kQ4;
    case DType::kQ4_K:
      return PackForm::kQ4K;
    case DType::kQ5_K:
      return PackForm::kQ5K;
    case DType::kQ6_K:
      return PackForm::kQ6K;
    case DType::kQ4_1:
    case DType::kQ5_1:
      return PackForm::kByteScaleMin;
    case DType::kQ2_K:
      return PackForm::kByteTwoMin;
    case DType::kQ3_K:
      return PackForm::kByteTwo;
    case DType::kIQ4_XS:
    case DType::kMXFP4:
      return PackForm::kByteScale;
    default:
      base::CheckFailed("FormOf of a weight type", DTypeName(type));
  }
}

int PackPanel(DType type,
              const std::byte* rows,
              std::size_t row_bytes,
              int num_rows,
              std::int64_t k,
              std::byte* out) {
  auto* o = reinterpret_cast<std::uint8_t*>(out);
  const auto keep = [](auto value) { return value; };
  switch (type) {
    case DType::kF32:
      return PackPlain<float, float, 1>(rows, row_bytes, num_rows, k, o, keep, Finite);
    case DType::kF16:
      return PackPlain<std::uint16_t, std::uint16_t, 1>(
          rows, row_bytes, num_rows, k, o, keep, [](std::uint16_t v) {
            return (v & 0x7c00) != 0x7c00;
          });
    case DType::kBF16:
      return PackPlain<std::uint16_t, std::uint16_t, 2>(
          rows, row_bytes, num_rows, k, o, keep, FiniteBf16);
    case DType::kF8E4M3:
      return PackPlain<std::uint8_t, std::uint16_t, 2>(
          rows,
          row_bytes,
          num_rows,
          k,
          o,
          [](std::uint8_t v) { return FloatToBf16(Fp8ToFloat(v)); },
          FiniteBf16);
    default:
      return PackQuantised(type, rows, row_bytes, num_rows, k, o);
  }
}

}  // namespace inferd::kernels
