// SPDX-License-Identifier: Apache-2.0
#include "spec/kv_dtype.h"

#include "base/error.h"

namespace inferd::spec {

namespace {

struct Name {
  std::string_view name;
  KvDtype dtype;
};

// Of one type the first is the one it is told by.
constexpr Name kNames[] = {{"auto", KvDtype::kAuto},
                           {"float16", KvDtype::kF16},
                           {"f16", KvDtype::kF16},
                           {"bfloat16", KvDtype::kBf16},
                           {"bf16", KvDtype::kBf16},
                           {"float32", KvDtype::kF32},
                           {"f32", KvDtype::kF32},
                           {"fp8_e4m3", KvDtype::kFp8},
                           {"fp8", KvDtype::kFp8},
                           {"int8", KvDtype::kInt8},
                           {"int8_per_token_head", KvDtype::kInt8}};

}  // namespace

std::vector<std::string> KvDtypeNames() {
  std::vector<std::string> names;
  for (const Name& known : kNames) {
    names.emplace_back(known.name);
  }
  return names;
}

Result<KvDtype> ParseKvDtype(std::string_view name) {
  for (const Name& known : kNames) {
    if (known.name == name) {
      return known.dtype;
    }
  }
  return InvalidArgument(
      "no KV cache is of type '{}'; there are auto, float16, bfloat16, float32, "
      "fp8_e4m3 and int8",
      name);
}

KvDtype KvDtypeFor(KvDtype asked, bool checkpoint_says_fp8) {
  return asked == KvDtype::kAuto && checkpoint_says_fp8 ? KvDtype::kFp8 : asked;
}

KvDtype ResolvedKvDtype(KvDtype dtype, const ModelSpec& model) {
  if (dtype != KvDtype::kAuto) {
    return dtype;
  }
  return model.weight_dtype == DType::kF32 ? KvDtype::kF32 : KvDtype::kF16;
}

std::string_view KvDtypeName(KvDtype dtype) {
  for (const Name& known : kNames) {
    if (known.dtype == dtype) {
      return known.name;
    }
  }
  return "auto";
}

double KvBytesPerValue(KvDtype dtype, const ModelSpec& model) {
  switch (ResolvedKvDtype(dtype, model)) {
    case KvDtype::kF32:
      return 4;
    case KvDtype::kFp8:
      return 1;
    case KvDtype::kInt8:
      return 1 + sizeof(float) / static_cast<double>(model.latent.used() ? model.latent.width()
                                                                         : model.head_dim);
    default:
      return 2;
  }
}

}  // namespace inferd::spec
