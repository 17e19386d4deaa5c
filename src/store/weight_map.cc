// SPDX-License-Identifier: Apache-2.0
#include "store/weight_map.h"

#include "base/error.h"
#include "store/quantised.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <unordered_set>
#include <vector>

namespace inferd::store {
namespace {

using spec::ModelSpec;

// A place to fill. Vectors have cols 1.
struct Place {
  Slot slot;
  std::int64_t layer;
  std::int64_t expert;
  std::int64_t rows;
  std::int64_t cols;
};

void AddAttention(const ModelSpec& spec, std::int64_t layer, std::vector<Place>* places) {
  const std::int64_t q = spec.num_heads * spec.head_dim;
  const std::int64_t kv = spec.num_kv_heads * spec.head_dim;
  const std::int64_t hidden = spec.hidden_size;
  const auto add = [&](Slot slot, std::int64_t rows, std::int64_t cols) {
    places->push_back({slot, layer, -1, rows, cols});
  };
  add(Slot::kAttnNorm, hidden, 1);
  if (const spec::LatentSpec& latent = spec.latent; latent.used()) {
    if (latent.q_rank > 0) {
      add(Slot::kQA, latent.q_rank, hidden);
      add(Slot::kQANorm, latent.q_rank, 1);
    }
    add(Slot::kQ, q, latent.q_rank > 0 ? latent.q_rank : hidden);
    add(Slot::kKvA, latent.width(), hidden);
    add(Slot::kKvANorm, latent.kv_rank, 1);
    add(Slot::kKvB, spec.num_heads * (latent.nope_dim + latent.value_dim), latent.kv_rank);
    add(Slot::kO, hidden, spec.num_heads * latent.value_dim);
    add(Slot::kFfnNorm, hidden, 1);
    return;
  }
  add(Slot::kQ, q, hidden);
  add(Slot::kK, kv, hidden);
  add(Slot::kV, kv, hidden);
  add(Slot::kO, hidden, q);
  if (spec.qkv_bias) {
    add(Slot::kQBias, q, 1);
    add(Slot::kKBias, kv, 1);
    add(Slot::kVBias, kv, 1);
  }
  if (spec.o_bias) {
    add(Slot::kOBias, hidden, 1);
  }
  if (spec.qk_norm) {
    add(Slot::kQNorm, spec.head_dim, 1);
    add(Slot::kKNorm, spec.head_dim, 1);
  }
  if (spec.attention_sinks) {
    add(Slot::kSinks, spec.num_heads, 1);
  }
  if (spec.sandwich_norm) {
    add(Slot::kPostAttnNorm, hidden, 1);
    add(Slot::kPostFfnNorm, hidden, 1);
  }
  add(Slot::kFfnNorm, hidden, 1);
}

void AddFfn(const ModelSpec& spec, std::int64_t layer, std::vector<Place>* places) {
  const std::int64_t hidden = spec.hidden_size;
  const std::int64_t ffn = spec.intermediate_size;
  const auto add = [&](Slot slot, std::int64_t rows, std::int64_t cols, std::int64_t expert = -1) {
    places->push_back({slot, layer, expert, rows, cols});
  };
  if (!spec.layers[static_cast<std::size_t>(layer)].moe) {
    add(Slot::kGate, ffn, hidden);
    add(Slot::kUp, ffn, hidden);
    add(Slot::kDown, hidden, ffn);
    if (spec.mlp_bias) {
      add(Slot::kGateBias, ffn, 1);
      add(Slot::kUpBias, ffn, 1);
      add(Slot::kDownBias, hidden, 1);
    }
    return;
  }
  add(Slot::kRouter, spec.moe.num_experts, hidden);
  if (spec.moe.choice_bias) {
    add(Slot::kRouterBias, spec.moe.num_experts, 1);
  }
  for (std::int64_t e = 0; e < spec.moe.num_experts; ++e) {
    add(Slot::kExpertGate, spec.moe.expert_intermediate_size, hidden, e);
    add(Slot::kExpertUp, spec.moe.expert_intermediate_size, hidden, e);
    add(Slot::kExpertDown, hidden, spec.moe.expert_intermediate_size, e);
  }
  if (const std::int64_t shared = spec.moe.shared_intermediate_size; shared > 0) {
    add(Slot::kSharedGate, shared, hidden);
    add(Slot::kSharedUp, shared, hidden);
    add(Slot::kSharedDown, hidden, shared);
    if (spec.moe.shared_gate) {
      add(Slot::kSharedExpertGate, hidden, 1);
    }
  }
}

std::vector<Place> PlacesOf(const ModelSpec& spec) {
  std::vector<Place> places = {{Slot::kEmbedding, -1, -1, spec.vocab_size, spec.hidden_size},
                               {Slot::kFinalNorm, -1, -1, spec.hidden_size, 1}};
  if (!spec.tied_head) {
    places.push_back({Slot::kHead, -1, -1, spec.vocab_size, spec.hidden_size});
  }
  for (std::int64_t layer = 0; layer < spec.num_layers; ++layer) {
    AddAttention(spec, layer, &places);
    AddFfn(spec, layer, &places);
  }
  return places;
}

void Replace(std::string* text, std::string_view what, std::string_view with) {
  if (const auto at = text->find(what); at != std::string::npos) {
    text->replace(at, what.size(), with);
  }
}

class Mapper {
 public:
  Mapper(const ModelSpec& spec,
         const Family& family,
         FileFormat format,
         const TensorSource& tensors)
      : spec_(spec), family_(family), tensors_(tensors) {
    for (const NamePattern& pattern :
         format == FileFormat::kGguf ? family.gguf_names : family.hf_names) {
      patterns_[pattern.slot].push_back(&pattern);
    }
    trunk_ = family.trunks.empty() ? "" : family.trunks.front();
    for (const std::string_view trunk : family.trunks) {
      if (tensors.Find(std::string(trunk) + "embed_tokens.weight") != nullptr) {
        trunk_ = trunk;
        break;
      }
    }
  }

  Result<Weights> Run() {
    Weights weights;
    for (const Place& place : PlacesOf(spec_)) {
      INFERD_ASSIGN(const WeightRef ref, Resolve(place));
      weights.Set(place.slot, place.layer, place.expert, ref);
    }
    if (spec_.tied_head) {
      weights.Set(Slot::kHead, -1, -1, *weights.Find(Slot::kEmbedding));
    }
    for (std::int64_t layer = 0; layer < spec_.num_layers; ++layer) {
      for (const KvScaleNames& names : KnownKvScales()) {
        TakeKvScale(Slot::kKScale, layer, names.k, &weights);
        TakeKvScale(Slot::kVScale, layer, names.v, &weights);
      }
    }
    INFERD_TRY(RefuseLeftOvers());
    return weights;
  }

 private:
  std::string Expand(const NamePattern& pattern, const Place& place) const {
    std::string name(pattern.name);
    Replace(&name, "{M}", trunk_);
    Replace(&name, "{L}", std::to_string(place.layer));
    Replace(&name, "{E}", std::to_string(place.expert));
    return name;
  }

  // If the files have it; the first name that they have counts.
  void TakeKvScale(Slot slot, std::int64_t layer, std::string_view name, Weights* weights) {
    const TensorInfo* const tensor =
        tensors_.Find(fmt::format("{}layers.{}.self_attn.{}", trunk_, layer, name));
    if (tensor == nullptr) {
      return;
    }
    used_.insert(tensor);
    if (weights->Find(slot, layer) == nullptr) {
      weights->Set(slot, layer, -1, {tensor, 0, tensor->rows(), tensor->cols()});
    }
  }

  Result<WeightRef> Resolve(const Place& place) {
    std::string wanted;
    for (const NamePattern* pattern : patterns_[place.slot]) {
      const std::string name = Expand(*pattern, place);
      const TensorInfo* tensor = tensors_.Find(name);
      if (tensor != nullptr) {
        used_.insert(tensor);
        return Take(*tensor, pattern->part, place);
      }
      wanted += (wanted.empty() ? "" : " or ") + name;
    }
    const std::string where = place.layer < 0 ? "the model" : fmt::format("layer {}", place.layer);
    return InvalidArgument("{}: tensor {} ({} of {}) is absent",
                           tensors_.files().empty() ? "" : tensors_.files().front().path(),
                           wanted,
                           SlotName(place.slot),
                           where);
  }

  // Where in the tensor the part begins, and the rows that the whole tensor must have.
  struct Extent {
    std::int64_t begin;
    std::int64_t rows;
  };
  Extent ExtentOf(Part part, const Place& place) const {
    const std::int64_t q = spec_.num_heads * spec_.head_dim;
    const std::int64_t kv = spec_.num_kv_heads * spec_.head_dim;
    const std::int64_t experts = spec_.moe.num_experts;
    switch (part) {
      case Part::kWhole:
        break;
      case Part::kFusedQ:
        return {0, q + 2 * kv};
      case Part::kFusedK:
        return {q, q + 2 * kv};
      case Part::kFusedV:
        return {q + kv, q + 2 * kv};
      case Part::kFirstHalf:
        return {0, 2 * place.rows};
      case Part::kSecondHalf:
        return {place.rows, 2 * place.rows};
      case Part::kExpert:
        return {place.expert * place.rows, experts * place.rows};
      case Part::kExpertFirstHalf:
        return {place.expert * 2 * place.rows, experts * 2 * place.rows};
      case Part::kExpertSecondHalf:
        return {(place.expert * 2 + 1) * place.rows, experts * 2 * place.rows};
    }
    return {0, place.rows};
  }

  Result<WeightRef> Take(const TensorInfo& tensor, Part part, const Place& place) const {
    const Extent extent = ExtentOf(part, place);
    WeightRef ref{&tensor, extent.begin, place.rows, place.cols};
    bool fits = tensor.rows() == extent.rows && tensor.cols() == place.cols;
    if (!fits && place.cols == 1 && part == Part::kWhole && tensor.rows() == 1 &&
        tensor.cols() == place.rows) {
      ref.rows = 1;  // a vector stored as one row
      ref.cols = place.rows;
      fits = true;
    }
    if (!fits) {
      return InvalidArgument(
          "{}: tensor {} has shape [{}], but the config asks for [{}, {}] as the {}",
          tensors_.FileOf(tensor),
          tensor.name,
          fmt::join(tensor.shape, ", "),
          extent.rows,
          place.cols,
          SlotName(place.slot));
    }
    const bool vector = place.cols == 1;
    const bool plain =
        tensor.dtype == DType::kF32 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kBF16;
    const bool integers =
        tensor.dtype == DType::kI8 || tensor.dtype == DType::kU8 || tensor.dtype == DType::kI32;
    if (integers || (vector && !plain) ||
        (place.slot == Slot::kEmbedding && tensor.parts != nullptr)) {
      return Unimplemented("{}: tensor {} is of type {}, which is not supported for the {}",
                           tensors_.FileOf(tensor),
                           tensor.name,
                           DTypeName(tensor.dtype),
                           SlotName(place.slot));
    }
    return ref;
  }

  /// Whether the layer that `bias` belongs to is quantised.
  bool IsQuantised(const std::string& bias) const {
    const TensorInfo* weight = tensors_.Find(bias.substr(0, bias.rfind('.')) + ".weight");
    return weight != nullptr && weight->parts != nullptr;
  }

  // Some tools write a bias of zeros for every quantised layer.
  bool IsZero(const TensorInfo& tensor) const {
    return tensor.parts == nullptr && std::ranges::all_of(tensors_.Data(tensor), [](std::byte b) {
             return b == std::byte{0};
           });
  }

  // Tensors that files hold beside the weights: derived values, and heads of tied models.
  bool MayBeLeftOver(const TensorInfo& tensor) const {
    static constexpr std::array<std::string_view, 6> kEnds = {"rotary_emb.inv_freq",
                                                              "rope_freqs.weight",
                                                              "rope_factors_short.weight",
                                                              "rope_factors_long.weight",
                                                              "attn_rot_embd",
                                                              "position_ids"};
    const auto ends = [&](std::string_view end) { return tensor.name.ends_with(end); };
    const auto begins = [&](std::string_view begin) { return tensor.name.starts_with(begin); };
    return std::ranges::any_of(kEnds, ends) || std::ranges::any_of(family_.ignored, begins) ||
           (spec_.tied_head && ends("lm_head.weight")) ||
           IsGuessingLayer(family_, spec_.num_layers, tensor.name) ||
           (ends(".bias") && IsQuantised(tensor.name) && IsZero(tensor));
  }

  Result<> RefuseLeftOvers() const {
    std::size_t count = 0;
    const TensorInfo* first = nullptr;
    for (const TensorInfo& tensor : tensors_.tensors()) {
      if (!used_.contains(&tensor) && !MayBeLeftOver(tensor)) {
        first = first != nullptr ? first : &tensor;
        ++count;
      }
    }
    if (count > 0) {
      return Unimplemented(
          "{}: tensor {} has no place in a {} decoder with this config ({} such tensors in all)",
          tensors_.FileOf(*first),
          first->name,
          family_.name,
          count);
    }
    return {};
  }

  const ModelSpec& spec_;
  const Family& family_;
  const TensorSource& tensors_;
  std::string_view trunk_;
  std::map<Slot, std::vector<const NamePattern*>> patterns_;
  std::unordered_set<const TensorInfo*> used_;
};

}  // namespace

Result<Weights> MapWeights(const ModelSpec& spec,
                           const Family& family,
                           FileFormat format,
                           const TensorSource& tensors) {
  return Mapper(spec, family, format, tensors).Run();
}

spec::CutGranularity CutOf(const ModelSpec& spec, const Weights& weights) {
  spec::CutGranularity cut;
  const auto widen = [&weights](
                         Slot slot, std::int64_t layer, std::int64_t expert, std::int64_t* size) {
    if (const WeightRef* ref = weights.Find(slot, layer, expert); ref != nullptr) {
      *size = std::max(*size, BlockElements(ref->dtype()));
    }
  };
  // Inputs of O and down are cut as activations and gathered: their int8 blocks hold 32 values.
  const auto widen_gathered = [&weights](Slot slot, std::int64_t layer, std::int64_t* size) {
    constexpr std::int64_t kActivationBlock = 32;
    if (const WeightRef* ref = weights.Find(slot, layer, -1); ref != nullptr) {
      *size = std::max(*size, std::min(BlockElements(ref->dtype()), kActivationBlock));
    }
  };
  for (std::int64_t layer = 0; layer < spec.num_layers; ++layer) {
    widen_gathered(Slot::kO, layer, &cut.attention_out);
    widen_gathered(Slot::kDown, layer, &cut.ffn);
    widen(Slot::kSharedDown, layer, -1, &cut.shared_ffn);
    for (std::int64_t expert = 0; expert < spec.moe.num_experts; ++expert) {
      widen(Slot::kExpertDown, layer, expert, &cut.expert_ffn);
    }
  }
  return cut;
}

DType MainDType(const ModelSpec& spec, const Weights& weights) {
  std::map<DType, std::uint64_t> bytes;
  for (const Place& place : PlacesOf(spec)) {
    if (place.layer >= 0) {
      const WeightRef* ref = weights.Find(place.slot, place.layer, place.expert);
      bytes[ref->dtype()] += ref->bytes();
    }
  }
  return std::ranges::max_element(bytes, {}, [](const auto& entry) { return entry.second; })->first;
}

}  // namespace inferd::store
