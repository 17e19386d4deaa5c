// SPDX-License-Identifier: Apache-2.0
// Routed experts on a CUDA device: the (row, slot) pairs are listed by expert, each expert's
// products run over its rows, and every row sums its slots in order. Up to
// MaskPairsArgs::kMostPairs pairs (decoding: 32 rows of 8 experts each) only experts in use get
// blocks, by one list each (masked); more are sorted, with running sums (contiguous). Both have
// launches that follow from the number of rows alone, as CUDA graphs need, and give the same bits.
#include "base/check.h"
#include "base/error.h"
#include "kernels/moe/moe_cuda.h"
#include "kernels/rows/rows_cuda.h"
#include "ops/cuda/cuda_device.h"

#include <algorithm>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {
namespace {

namespace k = kernels::cuda;

const CudaMatrix& First(std::span<const PackedMatrix* const> experts) {
  return static_cast<const CudaMatrix&>(*experts.front());
}

std::int32_t* Ints(const Memory& memory) { return reinterpret_cast<std::int32_t*>(memory.data()); }

}  // namespace

void CudaDevice::Route(const RouteTask& task) {
  if (!Use()) {
    return;
  }
  k::RouteArgs args;
  args.logits = task.logits;
  args.rows = task.rows;
  args.experts = static_cast<int>(task.experts);
  args.top_k = static_cast<int>(task.top_k);
  args.sigmoid = task.sigmoid;
  args.softmax_before_topk = task.softmax_before_topk;
  args.renormalize = task.renormalize;
  args.routed_scale = task.routed_scale;
  args.bias = task.bias;
  args.groups = static_cast<int>(task.groups);
  args.top_groups = static_cast<int>(task.top_groups);
  args.group_best = static_cast<int>(task.group_best);
  args.expert = task.expert;
  args.weight = task.weight;
  Check(k::Route(args, stream_), "routing");
}

Result<> CudaDevice::ListExpertRows(std::span<const PackedMatrix* const> experts) {
  const CudaMatrix& first = First(experts);
  std::vector<const std::byte*> rows;
  for (const PackedMatrix* expert : experts) {
    const auto& matrix = static_cast<const CudaMatrix&>(*expert);
    INFERD_CHECK_MSG(matrix.order() == nullptr, "experts' columns are in order");
    if (matrix.type() != first.type() || matrix.scales().bytes() != first.scales().bytes() ||
        matrix.group_columns() != first.group_columns()) {
      return Unimplemented(
          "the experts of a layer are stored as {} and {}, or with scales of different sizes; one "
          "form is needed",
          DTypeName(first.type()),
          DTypeName(matrix.type()));
    }
    rows.push_back(matrix.data());
  }
  Experts::List list;
  const std::size_t bytes = rows.size() * sizeof(rows[0]);
  INFERD_ASSIGN(list.rows, Allocate(bytes, "the list of experts"));
  Copy(list.rows.data(), rows.data(), bytes);
  if (const std::size_t scale_bytes = first.scales().bytes(); scale_bytes > 0) {
    // The kernel wants the scales of all experts in one array.
    list.num_scales = static_cast<std::int64_t>(scale_bytes / sizeof(float));
    INFERD_ASSIGN(list.scales, Allocate(scale_bytes * experts.size(), "the experts' scales"));
    std::byte* to = list.scales.data();
    for (const PackedMatrix* expert : experts) {
      Copy(to, static_cast<const CudaMatrix&>(*expert).scales().data(), scale_bytes);
      to += scale_bytes;
    }
  }
  experts_.lists[experts.data()] = std::move(list);
  return Wait();
}

Result<> CudaDevice::PrepareMoe(const MoeTask& task) {
  const std::int64_t pairs = task.rows * task.top_k;
  const std::int64_t hidden = First(task.gate).k();
  const std::int64_t ffn = First(task.gate).n();
  if (pairs > experts_.pairs || hidden > experts_.hidden || ffn > experts_.ffn) {
    experts_.pairs = std::max(pairs, experts_.pairs);
    experts_.hidden = std::max(hidden, experts_.hidden);
    experts_.ffn = std::max(ffn, experts_.ffn);
    const auto floats = [](std::int64_t rows, std::int64_t columns) {
      return static_cast<std::size_t>(rows * columns) * sizeof(float);
    };
    const auto experts = static_cast<std::int64_t>(task.gate.size());
    INFERD_ASSIGN(experts_.begin, Allocate(floats(experts + 1, 1), "sorting rows by expert"));
    INFERD_ASSIGN(experts_.source, Allocate(floats(pairs, 1), "sorting rows by expert"));
    INFERD_ASSIGN(experts_.position, Allocate(floats(pairs, 1), "sorting rows by expert"));
    INFERD_ASSIGN(experts_.gate, Allocate(floats(pairs, experts_.ffn), "experts"));
    INFERD_ASSIGN(experts_.up, Allocate(floats(pairs, experts_.ffn), "experts"));
    INFERD_ASSIGN(experts_.out, Allocate(floats(pairs, experts_.hidden), "experts"));
    const std::int64_t masked = std::min(pairs, k::MaskPairsArgs::kMostPairs);
    INFERD_ASSIGN(experts_.slots, Allocate(floats(2, masked), "listing rows by expert"));
    INFERD_ASSIGN(experts_.slot_pairs, Allocate(floats(masked, masked), "listing rows by expert"));
    INFERD_ASSIGN(experts_.slot_rows, Allocate(floats(masked, masked), "listing rows by expert"));
  }
  for (const auto& list : {task.gate, task.up, task.down}) {
    INFERD_TRY(ListExpertRows(list));
  }
  return {};
}

k::GroupedArgs CudaDevice::GroupedArgsOf(std::span<const PackedMatrix* const> experts) const {
  k::GroupedArgs args;
  args.w = First(experts).Args();
  args.w.rows = nullptr;
  const Experts::List& list = experts_.lists.at(experts.data());
  args.expert_rows = reinterpret_cast<const std::byte* const*>(list.rows.data());
  if (list.num_scales > 0) {
    args.w.scales = list.scales.floats();
    args.scale_stride = list.num_scales;
  }
  return args;
}

// The layout of the products: what they take beside matrices, x and y. `first`: x are the rows,
// else the pairs.
k::GroupedArgs CudaDevice::PlacedArgs(std::span<const PackedMatrix* const> experts,
                                      std::int64_t pairs,
                                      bool first) const {
  k::GroupedArgs args = GroupedArgsOf(experts);
  args.max_positions = pairs;
  args.experts = static_cast<int>(experts.size());
  if (pairs <= k::MaskPairsArgs::kMostPairs) {
    args.experts = static_cast<int>(std::min<std::int64_t>(args.experts, pairs));
    args.slot_expert = Ints(experts_.slots);
    args.slot_count = args.slot_expert + args.experts;
    args.source = Ints(first ? experts_.slot_rows : experts_.slot_pairs);
    args.target = Ints(experts_.slot_pairs);
    args.slot_stride = pairs;
  } else {
    args.expert_begin = Ints(experts_.begin);
    args.source = first ? Ints(experts_.source) : nullptr;
  }
  return args;
}

void CudaDevice::PlacePairs(const MoeTask& task) {
  const std::int64_t pairs = task.rows * task.top_k;
  const auto place = [&](auto args) {
    args.expert = task.expert;
    args.pairs = pairs;
    args.first = static_cast<int>(task.first_expert);
    args.experts = static_cast<int>(task.gate.size());
    args.top_k = static_cast<int>(task.top_k);
    args.position = Ints(experts_.position);
    return args;
  };
  if (pairs <= k::MaskPairsArgs::kMostPairs) {
    k::MaskPairsArgs mask = place(k::MaskPairsArgs());
    mask.slot_expert = Ints(experts_.slots);
    mask.slot_count = mask.slot_expert + mask.Slots();
    mask.pair = Ints(experts_.slot_pairs);
    mask.source = Ints(experts_.slot_rows);
    Check(k::MaskPairs(mask, stream_), "listing rows by expert");
    return;
  }
  k::SortPairsArgs sort = place(k::SortPairsArgs());
  sort.expert_begin = Ints(experts_.begin);
  sort.source = Ints(experts_.source);
  Check(k::SortPairs(sort, stream_), "sorting rows by expert");
}

void CudaDevice::Moe(const MoeTask& task) {
  if (task.rows == 0 || task.gate.empty()) {
    return;
  }
  const std::int64_t pairs = task.rows * task.top_k;
  const std::int64_t hidden = First(task.gate).k();
  const std::int64_t ffn = First(task.gate).n();
  INFERD_CHECK(pairs <= experts_.pairs);
  if (!Use()) {
    return;
  }
  PlacePairs(task);
  for (const auto& [weights, y] :
       {std::pair(task.gate, experts_.gate.floats()), std::pair(task.up, experts_.up.floats())}) {
    k::GroupedArgs args = PlacedArgs(weights, pairs, true);
    args.x = task.x;
    args.ldx = hidden;
    args.y = y;
    args.ldy = ffn;
    Check(k::GroupedMatMul(args, stream_), "the experts' first products");
  }
  Check(k::GateMul(static_cast<kernels::Gate>(task.gate_kind),
                   experts_.gate.floats(),
                   experts_.up.floats(),
                   ffn,
                   pairs,
                   ffn,
                   experts_.gate.floats(),
                   ffn,
                   stream_),
        "the experts' gates");
  k::GroupedArgs down = PlacedArgs(task.down, pairs, false);
  down.x = experts_.gate.floats();
  down.ldx = ffn;
  down.y = experts_.out.floats();
  down.ldy = hidden;
  Check(k::GroupedMatMul(down, stream_), "the experts' second product");
  k::CombineArgs combine;
  combine.out = experts_.out.floats();
  combine.ldout = hidden;
  combine.position = Ints(experts_.position);
  combine.weight = task.weight;
  combine.rows = task.rows;
  combine.top_k = static_cast<int>(task.top_k);
  combine.hidden = hidden;
  combine.y = task.y;
  combine.ldy = hidden;
  Check(k::Combine(combine, stream_), "summing the experts");
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
