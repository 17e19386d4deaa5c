// SPDX-License-Identifier: Apache-2.0
// Products with stored weights: few rows (bound by the weights' bytes), many rows (bound by the
// tensor cores), and the experts of a mixture.
#include "bench.h"
#include "kernels/matmul/matmul_cuda.h"
#include "kernels/moe/moe_cuda.h"

#include <algorithm>
#include <random>
#include <utility>

namespace inferd::gpu {
namespace {

namespace k = kernels::cuda;

constexpr std::int64_t kGroup = 128;  // columns per scale of the formats that have them beside

// One weight matrix of a type as models are stored in it.
k::Matrix Shape(DType type, std::int64_t n, std::int64_t columns) {
  k::Matrix w;
  w.type = type;
  w.n = n;
  w.k = columns;
  w.row_bytes = type == DType::kU8 ? columns / 2 : columns / BlockElements(type) * BlockBytes(type);
  const bool groups = type == DType::kU8;
  w.scale_k = groups ? kGroup : columns;
  w.scale_ld = groups ? (columns + kGroup - 1) / kGroup : 1;
  return w;
}

bool HasScales(DType type) { return type == DType::kU8 || type == DType::kF8E4M3; }

const char* Name(DType type) {
  return type == DType::kU8 ? "int4_group_128" : DTypeName(type).data();
}

double Bytes(const k::Matrix& w) {
  const double scales = HasScales(w.type) ? static_cast<double>(w.n * w.scale_ld) * 4 : 0;
  return static_cast<double>(w.n * w.row_bytes) + scales;
}

Result<> Sweep(Bench& bench,
               const char* name,
               std::initializer_list<DType> types,
               const std::vector<std::int64_t>& rows) {
  // The gate of an 8B model.
  const std::int64_t n = bench.tiny() ? 64 : 14'336;
  const std::int64_t columns = bench.tiny() ? 256 : 4096;
  const std::int64_t most = rows.back();
  INFERD_ASSIGN(const DeviceBytes x, bench.Fill(static_cast<std::size_t>(most * columns) * 4));
  INFERD_ASSIGN(const DeviceBytes y, bench.Fill(static_cast<std::size_t>(most * n) * 4));
  for (const DType type : types) {
    k::Matrix w = Shape(type, n, columns);
    const auto bytes = static_cast<std::size_t>(n * w.row_bytes);
    const std::int64_t pieces = bench.Pieces(bytes);
    INFERD_ASSIGN(const DeviceBytes weights, bench.Fill(bytes * static_cast<std::size_t>(pieces)));
    INFERD_ASSIGN(const DeviceBytes scales,
                  bench.Fill(static_cast<std::size_t>(n * w.scale_ld) * 4));
    w.scales = HasScales(type) ? reinterpret_cast<const float*>(scales.get()) : nullptr;
    for (const std::int64_t m : rows) {
      INFERD_ASSIGN(const double seconds, bench.Seconds([&](std::int64_t i) {
        w.rows = weights.get() + static_cast<std::size_t>(i % pieces) * bytes;
        return k::MatMul(w,
                         reinterpret_cast<const float*>(x.get()),
                         columns,
                         m,
                         nullptr,
                         false,
                         reinterpret_cast<float*>(y.get()),
                         n,
                         bench.stream());
      }));
      const double moved = Bytes(w) + static_cast<double>(m * (n + columns)) * 4;
      bench.Print(
          R"("sweep": "{}", "type": "{}", "m": {}, "n": {}, "k": {}, "ms": {:.5f}, "gb_s": {:.4g}, "tflop_s": {:.4g})",
          name,
          Name(type),
          m,
          n,
          columns,
          seconds * 1e3,
          moved * 1e-9 / seconds,
          2e-12 * static_cast<double>(m) * static_cast<double>(n * columns) / seconds);
    }
  }
  return {};
}

struct Mixture {
  const char* name;
  int experts, top_k;
  std::int64_t n, columns;
};

bool IsMasked(std::int64_t pairs) { return pairs <= k::MaskPairsArgs::kMostPairs; }

// Rows sent to experts at random, and the lists of both layouts.
struct Routing {
  DeviceBytes expert, position;
  DeviceBytes begin, source;                            // contiguous
  DeviceBytes slot_expert, slot_count, pair, slot_row;  // masked
  int active = 0;
};

std::int32_t* Ints(const DeviceBytes& bytes) {
  return reinterpret_cast<std::int32_t*>(bytes.get());
}

k::SortPairsArgs SortArgs(const Routing& routing, const Mixture& shape, std::int64_t pairs) {
  return {Ints(routing.expert),
          pairs,
          0,
          shape.experts,
          shape.top_k,
          Ints(routing.begin),
          Ints(routing.source),
          Ints(routing.position)};
}

k::MaskPairsArgs MaskArgs(const Routing& routing, const Mixture& shape, std::int64_t pairs) {
  return {Ints(routing.expert),
          pairs,
          0,
          shape.experts,
          shape.top_k,
          Ints(routing.slot_expert),
          Ints(routing.slot_count),
          Ints(routing.pair),
          Ints(routing.slot_row),
          Ints(routing.position)};
}

Result<> Listed(k::Status status) {
  return status == k::Status::kOk ? Result<>() : Internal("listing pairs by expert failed");
}

Result<Routing> Route(Bench& bench, const Mixture& shape, std::int64_t rows, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<bool> used(static_cast<std::size_t>(shape.experts));
  std::vector<std::int32_t> order(static_cast<std::size_t>(shape.experts));
  for (int e = 0; e < shape.experts; ++e) {
    order[static_cast<std::size_t>(e)] = e;
  }
  std::vector<std::int32_t> expert;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (int slot = 0; slot < shape.top_k; ++slot) {
      const auto at = static_cast<std::size_t>(slot);
      std::swap(order[at], order[at + random() % (order.size() - at)]);
      expert.push_back(order[at]);
      used[static_cast<std::size_t>(order[at])] = true;
    }
  }
  Routing routing;
  const std::size_t bytes = expert.size() * 4;
  const auto pairs = static_cast<std::int64_t>(expert.size());
  routing.active = static_cast<int>(std::count(used.begin(), used.end(), true));
  INFERD_ASSIGN(routing.expert, bench.Upload(expert));
  INFERD_ASSIGN(routing.position, bench.Fill(bytes));
  INFERD_ASSIGN(routing.begin, bench.Fill(used.size() * 4 + 4));
  INFERD_ASSIGN(routing.source, bench.Fill(bytes));
  INFERD_TRY(Listed(k::SortPairs(SortArgs(routing, shape, pairs), bench.stream())));
  if (IsMasked(pairs)) {
    INFERD_ASSIGN(routing.slot_expert, bench.Fill(bytes));
    INFERD_ASSIGN(routing.slot_count, bench.Fill(bytes));
    INFERD_ASSIGN(routing.pair, bench.Fill(bytes * expert.size()));
    INFERD_ASSIGN(routing.slot_row, bench.Fill(bytes * expert.size()));
    INFERD_TRY(Listed(k::MaskPairs(MaskArgs(routing, shape, pairs), bench.stream())));
  }
  return routing;
}

// The pairs listed by expert, in both layouts.
Result<> SweepListing(Bench& bench, const Mixture& shape, std::int64_t rows) {
  INFERD_ASSIGN(const Routing routing, Route(bench, shape, rows, 1));
  const std::int64_t pairs = rows * shape.top_k;
  for (const bool masked : {false, true}) {
    if (masked && !IsMasked(pairs)) {
      continue;
    }
    INFERD_ASSIGN(const double seconds, bench.Seconds([&](std::int64_t) {
      return masked ? k::MaskPairs(MaskArgs(routing, shape, pairs), bench.stream())
                    : k::SortPairs(SortArgs(routing, shape, pairs), bench.stream());
    }));
    bench.Print(R"("sweep": "experts", "kernel": "{}", "shape": "{}", "rows": {}, "ms": {:.5f})",
                masked ? "mask_pairs" : "sort_pairs",
                shape.name,
                rows,
                seconds * 1e3);
  }
  return {};
}

Result<> SweepMixture(
    Bench& bench, const Mixture& shape, DType type, std::int64_t rows, bool masked) {
  k::GroupedArgs args;
  args.w = Shape(type, shape.n, shape.columns);
  args.max_positions = rows * shape.top_k;
  args.experts = masked ? MaskArgs({}, shape, args.max_positions).Slots() : shape.experts;
  args.ldx = shape.columns;
  args.ldy = shape.n;
  const std::int64_t expert_bytes = shape.n * args.w.row_bytes;
  INFERD_ASSIGN(const DeviceBytes weights,
                bench.Fill(static_cast<std::size_t>(expert_bytes * shape.experts)));
  std::vector<const std::byte*> pointers;
  for (int e = 0; e < shape.experts; ++e) {
    pointers.push_back(weights.get() + e * expert_bytes);
  }
  args.scale_stride = HasScales(type) ? shape.n * args.w.scale_ld : 0;
  INFERD_ASSIGN(const DeviceBytes expert_rows, bench.Upload(pointers));
  INFERD_ASSIGN(
      const DeviceBytes scales,
      bench.Fill(static_cast<std::size_t>(shape.experts * shape.n * args.w.scale_ld) * 4));
  INFERD_ASSIGN(const DeviceBytes x,
                bench.Fill(static_cast<std::size_t>(rows * shape.columns) * 4));
  INFERD_ASSIGN(const DeviceBytes y,
                bench.Fill(static_cast<std::size_t>(args.max_positions * shape.n) * 4));
  args.expert_rows = reinterpret_cast<const std::byte* const*>(expert_rows.get());
  args.w.rows = weights.get();
  args.w.scales = HasScales(type) ? reinterpret_cast<const float*>(scales.get()) : nullptr;
  args.x = reinterpret_cast<const float*>(x.get());
  args.y = reinterpret_cast<float*>(y.get());
  // A step's experts are other ones than those of the step before.
  std::vector<Routing> routings;
  double active = 0;
  for (unsigned seed = 1; seed <= (bench.tiny() ? 1U : 8U); ++seed) {
    INFERD_ASSIGN(Routing routing, Route(bench, shape, rows, seed));
    active += routing.active;
    routings.push_back(std::move(routing));
  }
  active /= static_cast<double>(routings.size());
  INFERD_ASSIGN(const double seconds, bench.Seconds([&](std::int64_t i) {
    const Routing& routing = routings[static_cast<std::size_t>(i) % routings.size()];
    args.expert_begin = masked ? nullptr : Ints(routing.begin);
    args.source = Ints(masked ? routing.slot_row : routing.source);
    args.slot_expert = masked ? Ints(routing.slot_expert) : nullptr;
    args.slot_count = masked ? Ints(routing.slot_count) : nullptr;
    args.target = masked ? Ints(routing.pair) : nullptr;
    args.slot_stride = masked ? args.max_positions : 0;
    return k::GroupedMatMul(args, bench.stream());
  }));
  const auto pairs = static_cast<double>(args.max_positions);
  const double moved = active * Bytes(args.w) + static_cast<double>(rows * shape.columns) * 4 +
                       pairs * static_cast<double>(shape.n) * 4;
  bench.Print(
      R"("sweep": "experts", "layout": "{}", "shape": "{}", "type": "{}", "rows": {}, "active": {:.1f}, "ms": {:.5f}, "gb_s": {:.4g}, "tflop_s": {:.4g})",
      masked ? "masked" : "contiguous",
      shape.name,
      Name(type),
      rows,
      active,
      seconds * 1e3,
      moved * 1e-9 / seconds,
      2e-12 * pairs * static_cast<double>(shape.n * shape.columns) / seconds);
  return {};
}

}  // namespace

Result<> SweepSmallMatMul(Bench& bench) {
  const std::vector<std::int64_t> rows = bench.tiny()
                                             ? std::vector<std::int64_t>{1, 9}
                                             : std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 64};
  return Sweep(bench,
               "small_matmul",
               {DType::kBF16,
                DType::kF8E4M3,
                DType::kU8,
                DType::kQ4_K,
                DType::kQ8_0,
                DType::kF16,
                DType::kQ4_0,
                DType::kQ6_K,
                DType::kMXFP4},
               rows);
}

Result<> SweepLargeMatMul(Bench& bench) {
  const std::vector<std::int64_t> rows =
      bench.tiny() ? std::vector<std::int64_t>{70} : std::vector<std::int64_t>{512, 2048, 8192};
  return Sweep(bench,
               "large_matmul",
               {DType::kBF16, DType::kF8E4M3, DType::kU8, DType::kQ4_K, DType::kQ8_0},
               rows);
}

Result<> SweepExperts(Bench& bench) {
  const std::vector<Mixture> shapes =
      bench.tiny()
          ? std::vector<Mixture>{{"tiny", 4, 2, 64, 256}}
          : std::vector<Mixture>{{"128_top_8", 128, 8, 768, 2048}, {"8_top_2", 8, 2, 14'336, 4096}};
  const std::vector<std::int64_t> rows =
      bench.tiny() ? std::vector<std::int64_t>{3} : std::vector<std::int64_t>{1, 8, 64, 512, 4096};
  for (const Mixture& shape : shapes) {
    for (const std::int64_t count : rows) {
      INFERD_TRY(SweepListing(bench, shape, count));
    }
    for (const DType type : {DType::kBF16, DType::kF8E4M3, DType::kMXFP4}) {
      for (const std::int64_t count : rows) {
        INFERD_TRY(SweepMixture(bench, shape, type, count, false));
        if (IsMasked(count * shape.top_k)) {
          INFERD_TRY(SweepMixture(bench, shape, type, count, true));
        }
      }
    }
  }
  return {};
}

}  // namespace inferd::gpu
