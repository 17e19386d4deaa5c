// SPDX-License-Identifier: Apache-2.0
// The formats of K and V on the device: how a value is stored and read. `Value` is the storage
// type; a token's scale multiplies what Get returns (1 where the format has none).
#pragma once

#include "kernels/attention/kv_cuda.h"
#include "kernels/cuda/shim.cuh"

namespace inferd::kernels::cuda {

struct KvF16 {
  using Value = std::uint16_t;
  static constexpr bool kTokenScales = false;
  static DEVICE float Get(Value value) { return HalfBitsToFloat(value); }
  static DEVICE Value Put(float value, float) { return FloatToHalfBits(value); }
};

struct KvBf16 {
  using Value = std::uint16_t;
  static constexpr bool kTokenScales = false;
  static DEVICE float Get(Value value) { return Bf16BitsToFloat(value); }
  static DEVICE Value Put(float value, float) { return FloatToBf16Bits(value); }
};

struct KvF32 {
  using Value = float;
  static constexpr bool kTokenScales = false;
  static DEVICE float Get(Value value) { return value; }
  static DEVICE Value Put(float value, float) { return value; }
};

struct KvF8 {
  using Value = std::uint8_t;
  static constexpr bool kTokenScales = false;
  static DEVICE float Get(Value value) { return Fp8BitsToFloat(value); }
  static DEVICE Value Put(float value, float inverse) { return FloatToFp8Bits(value * inverse); }
};

struct KvI8 {
  using Value = std::int8_t;
  static constexpr bool kTokenScales = true;
  static DEVICE float Get(Value value) { return static_cast<float>(value); }
  static DEVICE Value Put(float value, float inverse) {
    return static_cast<Value>(__float2int_rn(fminf(fmaxf(value * inverse, -127.0F), 127.0F)));
  }
};

/// First K value of a head in a page; V follows after kCudaPageTokens tokens.
template <class Kv>
DEVICE typename Kv::Value* KvHead(const KvPages& kv, std::int64_t page, int head) {
  return reinterpret_cast<typename Kv::Value*>(kv.base + page * kv.page_bytes) +
         static_cast<std::int64_t>(head) * 2 * kCudaPageTokens * kv.head_dim;
}

/// The head's K scales, V's after them (int8 only).
template <class Kv>
DEVICE float* KvScales(const KvPages& kv, std::int64_t page, int head) {
  const std::int64_t values =
      static_cast<std::int64_t>(kv.kv_heads) * 2 * kCudaPageTokens * kv.head_dim;
  return reinterpret_cast<float*>(kv.base + page * kv.page_bytes +
                                  values * static_cast<std::int64_t>(sizeof(typename Kv::Value))) +
         head * 2 * kCudaPageTokens;
}

/// Calls fn with the format's struct.
template <class Function>
Status WithKvFormat(KvFormat format, Function fn) {
  switch (format) {
    case KvFormat::kF16:
      return fn(KvF16{});
    case KvFormat::kBf16:
      return fn(KvBf16{});
    case KvFormat::kF32:
      return fn(KvF32{});
    case KvFormat::kF8E4M3:
      return fn(KvF8{});
    case KvFormat::kInt8:
      return fn(KvI8{});
  }
  return Status::kInvalidValue;
}

}  // namespace inferd::kernels::cuda
