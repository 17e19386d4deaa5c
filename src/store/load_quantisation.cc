// SPDX-License-Identifier: Apache-2.0
#include "store/load_quantisation.h"

#include "base/error.h"
#include "store/block_rounding.h"
#include "store/quantised_parts.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

namespace inferd::store {
namespace {

// Not kv_b_proj: latent attention multiplies the two matrices that are made of it head by head, in
// 16 or 32 bits.
constexpr std::array<Slot, 12> kProjections = {Slot::kQA,
                                               Slot::kKvA,
                                               Slot::kQ,
                                               Slot::kK,
                                               Slot::kV,
                                               Slot::kO,
                                               Slot::kGate,
                                               Slot::kUp,
                                               Slot::kDown,
                                               Slot::kSharedGate,
                                               Slot::kSharedUp,
                                               Slot::kSharedDown};
constexpr std::array<Slot, 3> kExpertProjections = {
    Slot::kExpertGate, Slot::kExpertUp, Slot::kExpertDown};

// vLLM's names of kernels for two of the formats say no more of the files.
std::string_view FormatOf(std::string_view name) {
  constexpr std::string_view kKernel = "_marlin";
  return name.ends_with(kKernel) ? name.substr(0, name.size() - kKernel.size()) : name;
}

class Rounder {
 public:
  Rounder(DType type, bool keep_fp8, TensorSource* tensors)
      : type_(type), keep_fp8_(keep_fp8), tensors_(*tensors) {}

  // Several places may share a tensor: the first one rounds it.
  void Round(const WeightRef* ref) {
    if (ref == nullptr || ref->tensor->parts != nullptr) {
      return;
    }
    const TensorInfo& tensor = *ref->tensor;
    const bool plain =
        tensor.dtype == DType::kF32 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kBF16;
    if (!plain || (type_ != DType::kF8E4M3 && tensor.cols() % kRoundBlock != 0)) {
      return;
    }
    auto parts = std::make_shared<QuantisedParts>();
    parts->layout = QuantisedParts::Layout::kPlain;
    parts->rounded = type_;
    parts->rows = tensor.rows();
    parts->cols = tensor.cols();
    parts->group_size = parts->cols;
    parts->weight = tensor;
    TensorInfo rounded = tensor;
    rounded.dtype = type_ == DType::kF8E4M3 && !keep_fp8_ ? DType::kBF16 : type_;
    rounded.bytes = static_cast<std::uint64_t>(
        parts->rows * (parts->cols / BlockElements(rounded.dtype)) * BlockBytes(rounded.dtype));
    rounded.parts = std::move(parts);
    tensors_.Replace(tensor, std::move(rounded));
    ++count_;
  }
  int count() const { return count_; }

 private:
  const DType type_;
  const bool keep_fp8_;
  TensorSource& tensors_;
  int count_ = 0;
};

std::optional<DType> RoundedType(std::string_view name) {
  return name == "int8"   ? std::optional(DType::kQ8_0)
         : name == "int4" ? std::optional(DType::kQ4_0)
         : name == "fp8"  ? std::optional(DType::kF8E4M3)
                          : std::nullopt;
}

// FP8 layers of the files, with scales that a kernel can take: one a row, or one per so many
// columns. int8 layers whose inputs become int8 too, in place of blocks of 32.
void KeepFp8(TensorSource* tensors) {
  for (const TensorInfo& tensor : tensors->tensors()) {
    const QuantisedParts* const parts = tensor.parts.get();
    if (parts == nullptr || parts->layout != QuantisedParts::Layout::kScaled ||
        (parts->weight.dtype != DType::kF8E4M3 && !parts->by_token) ||
        (parts->group_size < parts->cols && parts->group_size % kRoundBlock != 0)) {
      continue;
    }
    TensorInfo kept = tensor;
    kept.dtype = parts->weight.dtype;
    kept.bytes = static_cast<std::uint64_t>(parts->rows * parts->cols);
    tensors->Replace(tensor, std::move(kept));
  }
}

}  // namespace

Result<> ApplyQuantization(const Quantization& quantization,
                           std::string_view stored,
                           const spec::ModelSpec& spec,
                           const Weights& weights,
                           TensorSource* tensors) {
  const std::string_view name = quantization.name;
  if (quantization.keep_fp8) {
    KeepFp8(tensors);
  }
  if (name.empty() || (!stored.empty() && FormatOf(name) == stored)) {
    return {};
  }
  const std::optional<DType> type = RoundedType(name);
  if (!type || (*type == DType::kF8E4M3 && !stored.empty())) {
    return InvalidArgument(
        "--quantization {}: the weights of {} are {}{}; leave the flag out{}",
        name,
        spec.name,
        stored.empty() ? "not quantised" : "of the format ",
        stored,
        stored.empty() ? ", or give fp8, int8 or int4 to round 16- and 32-bit weights while loading"
                       : "");
  }
  Rounder rounder(*type, quantization.keep_fp8, tensors);
  for (std::int64_t layer = 0; layer < spec.num_layers; ++layer) {
    for (const Slot slot : kProjections) {
      rounder.Round(weights.Find(slot, layer));
    }
    for (std::int64_t expert = 0; expert < spec.moe.num_experts; ++expert) {
      for (const Slot slot : kExpertProjections) {
        rounder.Round(weights.Find(slot, layer, expert));
      }
    }
  }
  if (rounder.count() == 0) {
    return InvalidArgument(
        "--quantization {}: no projection of {} is stored as F32, F16 or BF16 with a "
        "multiple of {} inputs; leave the flag out",
        name,
        spec.name,
        kRoundBlock);
  }
  return {};
}

}  // namespace inferd::store
