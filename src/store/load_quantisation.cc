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

constexpr std::array<Slot, 10> kProjections = {Slot::kQ,
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
  Rounder(DType type, TensorSource* tensors) : type_(type), tensors_(*tensors) {}

  // Several places may share a tensor: the first one rounds it.
  void Round(const WeightRef* ref) {
    if (ref == nullptr || ref->tensor->parts != nullptr) {
      return;
    }
    const TensorInfo& tensor = *ref->tensor;
    const bool plain =
        tensor.dtype == DType::kF32 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kBF16;
    if (!plain || tensor.cols() % kRoundBlock != 0) {
      return;
    }
    auto parts = std::make_shared<QuantisedParts>();
    parts->layout = QuantisedParts::Layout::kPlain;
    parts->rounded = type_;
    parts->rows = tensor.rows();
    parts->cols = tensor.cols();
    parts->weight = tensor;
    TensorInfo rounded = tensor;
    rounded.dtype = type_;
    rounded.bytes =
        static_cast<std::uint64_t>(parts->rows * (parts->cols / kRoundBlock) * BlockBytes(type_));
    rounded.parts = std::move(parts);
    tensors_.Replace(tensor, std::move(rounded));
    ++count_;
  }
  int count() const { return count_; }

 private:
  const DType type_;
  TensorSource& tensors_;
  int count_ = 0;
};

std::optional<DType> RoundedType(std::string_view name) {
  return name == "int8"   ? std::optional(DType::kQ8_0)
         : name == "int4" ? std::optional(DType::kQ4_0)
                          : std::nullopt;
}

}  // namespace

Result<> ApplyQuantization(std::string_view name,
                           std::string_view stored,
                           const spec::ModelSpec& spec,
                           const Weights& weights,
                           TensorSource* tensors) {
  if (name.empty() || (!stored.empty() && FormatOf(name) == stored)) {
    return {};
  }
  const std::optional<DType> type = RoundedType(name);
  if (!type) {
    return InvalidArgument(
        "--quantization {}: the weights of {} are {}{}; leave the flag out, or give int8 or "
        "int4 to round 16- and 32-bit weights while loading",
        name,
        spec.name,
        stored.empty() ? "not quantised" : "of the format ",
        stored);
  }
  Rounder rounder(*type, tensors);
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
