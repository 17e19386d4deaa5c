// SPDX-License-Identifier: Apache-2.0
#include "plan/layouts.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

namespace inferd::plan {
namespace {

using cost::Reach;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string Name(const spec::ParallelSpec& parallel) {
  return fmt::format("tp {} pp {} ep {}", parallel.tp, parallel.pp, parallel.ep);
}

bool IsSlice(const cost::DeviceProfile& device) {
  return device.mig.size() == 1 && device.name.find(':') != std::string::npos;
}

/// Sizes worth trying: powers of two, or the one that was asked for.
std::vector<int> Sizes(int wanted, int most) {
  if (wanted > 0) {
    return {wanted};
  }
  std::vector<int> sizes;
  for (int size = 1; size <= most; size *= 2) {
    sizes.push_back(size);
  }
  return sizes;
}

/// Slots for tensor-parallel groups: the devices of each, domain by domain.
struct Slot {
  int node = 0;
  int first = 0;  // its devices are first .. first + tp - 1
};

std::vector<Slot> Slots(const ClusterSpec& cluster, int tp) {
  std::vector<Slot> slots;
  const std::vector<int> domains = NodeDomains(cluster);
  // Without fast links, or with more ranks than a domain has, a group takes devices of the node in
  // order.
  const bool whole_node = *std::ranges::max_element(domains) < tp;
  const std::vector<int> runs = whole_node ? std::vector<int>{cluster.per_node} : domains;
  for (int node = 0; node < cluster.nodes; ++node) {
    int begin = 0;
    for (const int run : runs) {
      for (int i = 0; i + tp <= run; i += tp) {
        slots.push_back({node, begin + i});
      }
      begin += run;
    }
  }
  return slots;
}

/// Replicas in order over the slots, none over more hosts than it must: a replica that fits a host
/// is not begun on one that has too few slots left.
std::vector<std::vector<Slot>> Deal(const ClusterSpec& cluster,
                                    const std::vector<Slot>& slots,
                                    int groups) {
  const int per_node = static_cast<int>(slots.size()) / std::max(1, cluster.nodes);
  std::vector<std::vector<Slot>> replicas;
  if (groups <= per_node) {
    for (int node = 0; node < cluster.nodes; ++node) {
      for (int i = 0; i + groups <= per_node; i += groups) {
        const auto begin = slots.begin() + node * per_node + i;
        replicas.emplace_back(begin, begin + groups);
      }
    }
    return replicas;
  }
  for (std::size_t i = 0; i + static_cast<std::size_t>(groups) <= slots.size();
       i += static_cast<std::size_t>(groups)) {
    replicas.emplace_back(slots.begin() + static_cast<std::ptrdiff_t>(i),
                          slots.begin() + static_cast<std::ptrdiff_t>(i) + groups);
  }
  return replicas;
}

Reach ReachOf(const ClusterSpec& cluster, int tp) {
  const std::vector<int> domains = NodeDomains(cluster);
  if (tp > cluster.per_node) {
    return Reach::kNetwork;
  }
  return *std::ranges::max_element(domains) >= tp && cluster.device.domain_devices > 1
             ? Reach::kDomain
             : Reach::kHost;
}

cost::ReplicaLinks LinksOf(const ClusterSpec& cluster, const spec::ParallelSpec& parallel) {
  cost::ReplicaLinks links;
  links.tp = ReachOf(cluster, parallel.tp);
  links.ep = ReachOf(cluster, parallel.tp * parallel.ep);
  links.pp = ReachOf(cluster, parallel.ranks_per_replica());
  return links;
}

std::int64_t Budget(const LayoutRequest& request) {
  const cost::DeviceProfile& device = request.cluster.device;
  return static_cast<std::int64_t>(static_cast<double>(device.memory_bytes) *
                                   request.memory_utilization) -
         device.reserved_bytes;
}

std::int64_t SequenceTokens(const LayoutRequest& request) {
  return request.max_model_len > 0
             ? request.max_model_len
             : static_cast<std::int64_t>(request.lengths.input + request.lengths.output);
}

Result<> FillMemory(const LayoutRequest& request,
                    const std::vector<spec::ShardPlan>& shards,
                    Layout* layout) {
  spec::LedgerOptions options;
  options.bytes_per_weight = request.bytes_per_weight;
  options.kv_bytes_per_value = 1;  // scaled below: it may be less than a byte
  options.max_batched_tokens = request.max_batched_tokens;
  options.max_num_seqs = request.max_num_seqs;
  INFERD_ASSIGN(spec::MemoryLedger ledger, spec::MakeLedger(request.model, shards, options));
  const std::int64_t budget = Budget(request);
  const std::int64_t wanted = SequenceTokens(request);
  layout->kv_tokens = 0;
  bool first = true;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    RankMemory memory;
    memory.ledger = ledger.ranks[i];
    memory.ledger.kv_bytes_per_token = std::llround(
        static_cast<double>(memory.ledger.kv_bytes_per_token) * request.kv_bytes_per_value);
    memory.parameters = spec::ShardWeights(request.model, shards[i]);
    const std::int64_t fixed = memory.ledger.weight_bytes + memory.ledger.activation_bytes +
                               memory.ledger.collective_bytes;
    const std::int64_t left = budget - fixed;
    const std::int64_t page_bytes = memory.ledger.kv_bytes_per_token * options.page_tokens;
    memory.ledger.kv_pages = page_bytes > 0 ? std::max<std::int64_t>(0, left) / page_bytes : 0;
    memory.ledger.kv_bytes = memory.ledger.kv_pages * page_bytes;
    memory.headroom =
        static_cast<double>(left) / static_cast<double>(request.cluster.device.memory_bytes);
    const std::int64_t tokens = memory.ledger.kv_pages * options.page_tokens;
    if (tokens < wanted) {
      return ResourceExhausted(
          "rank {} needs {:.1f} GiB for weights, {:.1f} for activations and collectives and {:.1f} "
          "for one sequence of {} tokens, {:.1f} in all; {:.1f} GiB of a device may be used",
          i,
          static_cast<double>(memory.ledger.weight_bytes) / kGiB,
          static_cast<double>(fixed - memory.ledger.weight_bytes) / kGiB,
          static_cast<double>(memory.ledger.kv_bytes_per_token * wanted) / kGiB,
          wanted,
          static_cast<double>(fixed + memory.ledger.kv_bytes_per_token * wanted) / kGiB,
          static_cast<double>(budget) / kGiB);
    }
    layout->kv_tokens = first ? tokens : std::min(layout->kv_tokens, tokens);
    first = false;
    layout->ranks.push_back(memory);
  }
  return {};
}

void FillPredictions(const LayoutRequest& request, Layout* layout) {
  ReplicaModel& replica = layout->model;
  layout->most_running =
      std::min(static_cast<double>(request.max_num_seqs),
               std::floor(static_cast<double>(layout->kv_tokens) /
                          std::max(1.0, request.lengths.input + request.lengths.output))) *
      layout->parallel.ep;
  layout->kv_tokens *= layout->parallel.ep;  // every group has its own
  layout->alone = PredictAlone(replica, request.lengths);
  const double most = MaxRate(replica, request.lengths, request.targets);
  layout->max_rate = most * layout->replicas;
  layout->at_limit = Predict(replica, request.lengths, most);
  layout->tokens_per_s = layout->max_rate * request.lengths.output;
  layout->meets = most > 0;
  if (request.rate > 0) {
    layout->at_rate =
        Predict(replica, request.lengths, request.rate / std::max(1, layout->replicas));
    layout->meets = layout->max_rate >= request.rate;
    layout->replicas_needed = most > 0 ? static_cast<int>(std::ceil(request.rate / most)) : 0;
  }
  if (layout->tokens_per_s > 0) {
    layout->cost_per_million = request.cluster.device.price_per_hour * request.cluster.devices() /
                               3600 / layout->tokens_per_s * 1e6;
  }
}

Result<Layout> MakeLayout(const LayoutRequest& request, const spec::ParallelSpec& parallel) {
  const ClusterSpec& cluster = request.cluster;
  if (parallel.tp > cluster.per_node && !request.allow_cross_host_tp) {
    return FailedPrecondition(
        "a tensor-parallel group of {} would span hosts of {} devices; --allow-cross-host-tp lets "
        "it",
        parallel.tp,
        cluster.per_node);
  }
  if (IsSlice(cluster.device) && parallel.ranks_per_replica() > 1) {
    return FailedPrecondition(
        "MIG slices have no peer access: only replicas of one rank run on them");
  }
  Layout layout;
  layout.parallel = parallel;
  layout.links = LinksOf(cluster, parallel);
  INFERD_ASSIGN(const auto shards, spec::PlanShards(request.model, parallel, request.cut));
  INFERD_TRY(FillMemory(request, shards, &layout));
  const int ranks = parallel.ranks_per_replica();
  std::vector<std::vector<Slot>> replicas;
  if (parallel.tp > cluster.per_node) {
    for (int first = 0; first + ranks <= cluster.devices(); first += ranks) {
      std::vector<Slot> singles;
      for (int i = 0; i < ranks; ++i) {
        singles.push_back({(first + i) / cluster.per_node, (first + i) % cluster.per_node});
      }
      replicas.push_back(std::move(singles));
    }
  } else {
    replicas = Deal(cluster, Slots(cluster, parallel.tp), parallel.pp * parallel.ep);
  }
  const int most = static_cast<int>(replicas.size());
  layout.reserve = request.redundancy;
  layout.replicas = most - layout.reserve;
  layout.unused_devices = cluster.devices() - most * ranks;
  if (layout.replicas < 1) {
    return ResourceExhausted(
        "{} device(s) give {} replica(s) of {} rank(s), and {} would be in reserve",
        cluster.devices(),
        most,
        ranks,
        layout.reserve);
  }
  const int width = parallel.tp > cluster.per_node ? 1 : parallel.tp;
  for (const auto& slots : replicas) {
    for (const Slot& slot : slots) {
      for (int i = 0; i < width; ++i) {
        layout.places.push_back({slot.node, slot.first + i});
      }
    }
  }
  layout.model.stages = cost::MakeStages(
      request.model, shards, request.bytes_per_weight, request.kv_bytes_per_value, cluster.device);
  layout.model.device = cluster.device;
  layout.model.links = layout.links;
  layout.model.groups = parallel.ep;
  layout.model.kv_tokens = layout.kv_tokens;
  layout.model.max_num_seqs = request.max_num_seqs;
  layout.model.max_batched_tokens = request.max_batched_tokens;
  FillPredictions(request, &layout);
  return layout;
}

/// Better first: those that meet rate and targets; of them the higher limit, then fewer ranks.
bool IsBetter(const Layout& a, const Layout& b) {
  const auto key = [](const Layout& layout) {
    return std::tuple(
        !layout.meets, -layout.max_rate, layout.parallel.ranks_per_replica(), layout.alone.tpot_s);
  };
  return key(a) < key(b);
}

/// The fewest devices of this kind that hold the model at all, as --tp groups of a node and stages.
std::string WhatWouldFit(const LayoutRequest& request) {
  const double weights =
      static_cast<double>(spec::CountParameters(request.model)) * request.bytes_per_weight;
  const auto budget = static_cast<double>(Budget(request));
  std::string advice;
  for (int ranks = 1; ranks <= 1024; ranks *= 2) {
    LayoutRequest more = request;
    const int tp = std::min(ranks, IsSlice(request.cluster.device) ? 1 : request.cluster.per_node);
    const int pp = ranks / tp;
    if (IsSlice(request.cluster.device) && ranks > 1) {
      break;
    }
    more.cluster.nodes =
        std::max(1, (ranks + request.cluster.per_node - 1) / request.cluster.per_node);
    more.redundancy = 0;
    spec::ParallelSpec parallel;
    parallel.tp = tp;
    parallel.pp = pp;
    if (MakeLayout(more, parallel).ok()) {
      advice =
          fmt::format("{} devices of this kind would hold it (--tp {} --pp {})", ranks, tp, pp);
      break;
    }
  }
  for (const double bytes : {1.0, 0.5625}) {
    if (bytes >= request.bytes_per_weight) {
      continue;
    }
    LayoutRequest smaller = request;
    smaller.bytes_per_weight = bytes;
    bool fits = false;
    for (const int tp : Sizes(request.tp, request.cluster.per_node)) {
      for (const int pp : Sizes(request.pp, request.cluster.nodes)) {
        spec::ParallelSpec parallel;
        parallel.tp = tp;
        parallel.pp = pp;
        fits = fits || MakeLayout(smaller, parallel).ok();
      }
    }
    if (fits) {
      advice += fmt::format("{}weights of {} bits would fit here (--weight-bits {})",
                            advice.empty() ? "" : "; ",
                            bytes < 1 ? 4 : 8,
                            bytes < 1 ? 4 : 8);
      break;
    }
  }
  return fmt::format("the weights alone take {:.1f} GiB, and {:.1f} GiB of each {} may be used{}",
                     weights / kGiB,
                     budget / kGiB,
                     request.cluster.device.name,
                     advice.empty() ? std::string() : "; " + advice);
}

}  // namespace

std::vector<int> NodeDomains(const ClusterSpec& cluster) {
  if (!cluster.domains.empty()) {
    return cluster.domains;
  }
  std::vector<int> domains;
  const int size = std::max(1, cluster.device.domain_devices);
  for (int left = cluster.per_node; left > 0; left -= size) {
    domains.push_back(std::min(left, size));
  }
  return domains;
}

Result<LayoutPlan> PlanLayouts(const LayoutRequest& request) {
  const ClusterSpec& cluster = request.cluster;
  const int given = std::accumulate(cluster.domains.begin(), cluster.domains.end(), 0);
  if (!cluster.domains.empty() && given != cluster.per_node) {
    return InvalidArgument(
        "the topology is of {} devices, but a node has {}", given, cluster.per_node);
  }
  const int most = cluster.devices();
  LayoutPlan plan;
  for (const int tp : Sizes(request.tp, request.allow_cross_host_tp ? most : cluster.per_node)) {
    for (const int ep :
         Sizes(request.model.moe.num_experts > 0 ? request.ep : std::max(request.ep, 1),
               std::max(1, most / tp))) {
      for (const int pp : Sizes(request.pp, std::max(1, most / (tp * ep)))) {
        spec::ParallelSpec parallel;
        parallel.tp = tp;
        parallel.pp = pp;
        parallel.ep = ep;
        parallel.expert_parallel_in_tp = request.expert_parallel_in_tp;
        Result<Layout> layout = MakeLayout(request, parallel);
        if (layout.ok()) {
          plan.layouts.push_back(*std::move(layout));
        } else if (layout.error().code() == Code::kInvalidArgument && request.tp > 0) {
          return layout.error();
        } else {
          plan.rejected.push_back(Name(parallel) + ": " + layout.error().message());
        }
      }
    }
  }
  if (plan.layouts.empty()) {
    return ResourceExhausted("{} does not fit {}x {}: {}. {}",
                             request.model.name,
                             cluster.devices(),
                             cluster.device.name,
                             WhatWouldFit(request),
                             plan.rejected.empty() ? "" : plan.rejected.back());
  }
  std::ranges::stable_sort(plan.layouts, IsBetter);
  return plan;
}

}  // namespace inferd::plan
