// SPDX-License-Identifier: Apache-2.0
#include "store/weights.h"

#include "base/check.h"

#include <algorithm>
#include <array>

namespace inferd::store {
namespace {

constexpr std::array<std::string_view, 40> kNames = {"embedding",
                                                     "head",
                                                     "final norm",
                                                     "attention norm",
                                                     "q",
                                                     "k",
                                                     "v",
                                                     "o",
                                                     "q bias",
                                                     "k bias",
                                                     "v bias",
                                                     "o bias",
                                                     "q norm",
                                                     "k norm",
                                                     "sinks",
                                                     "K scale",
                                                     "V scale",
                                                     "q latent",
                                                     "norm of the q latent",
                                                     "kv latent",
                                                     "norm of the kv latent",
                                                     "k and v of the latent",
                                                     "post-attention norm",
                                                     "ffn norm",
                                                     "post-ffn norm",
                                                     "gate",
                                                     "up",
                                                     "down",
                                                     "gate bias",
                                                     "up bias",
                                                     "down bias",
                                                     "router",
                                                     "router bias",
                                                     "shared gate",
                                                     "shared up",
                                                     "shared down",
                                                     "shared expert gate",
                                                     "expert gate",
                                                     "expert up",
                                                     "expert down"};
static_assert(kNames.size() == static_cast<std::size_t>(Slot::kExpertDown) + 1);

// 8 bits of slot, 28 of layer + 1, 28 of expert + 1.
std::uint64_t Key(Slot slot, std::int64_t layer, std::int64_t expert) {
  return static_cast<std::uint64_t>(slot) | (static_cast<std::uint64_t>(layer + 1) << 8U) |
         (static_cast<std::uint64_t>(expert + 1) << 36U);
}

}  // namespace

std::string_view SlotName(Slot slot) { return kNames[static_cast<std::size_t>(slot)]; }

const WeightRef* Weights::Find(Slot slot, std::int64_t layer, std::int64_t expert) const {
  const auto place = refs_.find(Key(slot, layer, expert));
  return place == refs_.end() ? nullptr : &place->second;
}

std::span<const std::byte> Weights::Data(const TensorSource& source, const WeightRef& ref) {
  INFERD_CHECK(ref.tensor != nullptr && ref.row_begin >= 0 && ref.rows >= 0);
  INFERD_CHECK(ref.row_begin + ref.rows <= ref.tensor->rows());
  const std::uint64_t row_bytes = ref.tensor->row_bytes();
  return source.Data(*ref.tensor)
      .subspan(static_cast<std::uint64_t>(ref.row_begin) * row_bytes, ref.bytes());
}

std::vector<const TensorInfo*> Weights::Tensors() const {
  std::vector<const TensorInfo*> tensors;
  tensors.reserve(refs_.size());
  for (const auto& [key, ref] : refs_) {
    tensors.push_back(ref.tensor);
  }
  std::ranges::sort(tensors);
  const auto repeated = std::ranges::unique(tensors);
  tensors.erase(repeated.begin(), repeated.end());
  return tensors;
}

void Weights::Set(Slot slot, std::int64_t layer, std::int64_t expert, const WeightRef& ref) {
  refs_[Key(slot, layer, expert)] = ref;
}

}  // namespace inferd::store
