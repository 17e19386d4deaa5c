// SPDX-License-Identifier: Apache-2.0
// KvDtype: how K and V of a token are kept, and how many bytes that takes. Pure.
#pragma once

#include "inferd/result.h"
#include "spec/model_spec.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::spec {

/// kAuto has no FP8 of a checkpoint that is meant for it: see KvDtypeFor. kFp8: E4M3 times the
/// scales of the checkpoint for K and V of a layer, 1 where it has none; at most 448 in size
/// without them. kInt8: 127 steps to the largest value of a token and head, whose scale (4 bytes)
/// lies beside them.
enum class KvDtype : std::uint8_t { kAuto, kBf16, kF32, kF16, kFp8, kInt8 };

/// The values of --kv-cache-dtype.
std::vector<std::string> KvDtypeNames();

/// One of them. Refuses other names.
Result<KvDtype> ParseKvDtype(std::string_view name);

/// What serving and planning take of --kv-cache-dtype: for kAuto kFp8 where the checkpoint says
/// that its KV cache is meant to be FP8.
KvDtype KvDtypeFor(KvDtype asked, bool checkpoint_says_fp8);

/// kAuto: F32 for F32 weights, else F16, which has eight times bfloat16's precision in the same
/// bytes; K and V beyond 65504 are clamped.
KvDtype ResolvedKvDtype(KvDtype dtype, const ModelSpec& model);

/// The name that --kv-cache-dtype has for it, the first of several. Static.
std::string_view KvDtypeName(KvDtype dtype);

/// Bytes of one value of K or V, its share of the scale included.
double KvBytesPerValue(KvDtype dtype, const ModelSpec& model);

}  // namespace inferd::spec
