// SPDX-License-Identifier: Apache-2.0
#include "plan/layout_report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace inferd::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr std::size_t kShownLayouts = 12;
constexpr std::size_t kShownRanks = 8;
constexpr std::size_t kShownReplicas = 8;

double Gib(double bytes) { return bytes / kGiB; }
double Gib(std::int64_t bytes) { return static_cast<double>(bytes) / kGiB; }
double ClassGib(const LayoutRequest& request, std::int64_t parameters) {
  return static_cast<double>(parameters) * request.bytes_per_weight / kGiB;
}
double Ms(double seconds) { return seconds * 1e3; }
double Rounded(double value) { return std::round(value * 1e4) / 1e4; }

const char* ReachName(cost::Reach reach) {
  return reach == cost::Reach::kDomain ? "domain"
         : reach == cost::Reach::kHost ? "host"
                                       : "network";
}

std::string Replica(const LayoutRequest& request, const Layout& layout, std::size_t replica) {
  const auto ranks = static_cast<std::size_t>(layout.parallel.ranks_per_replica());
  std::string text;
  int node = -1;
  for (std::size_t i = 0; i < ranks; ++i) {
    const RankPlace& place = layout.places[replica * ranks + i];
    text += place.node == node
                ? fmt::format(",{}", place.device)
                : fmt::format("{}node {}: {}", text.empty() ? "" : "; ", place.node, place.device);
    node = place.node;
  }
  const bool reserve = replica >= static_cast<std::size_t>(layout.replicas);
  return fmt::format("  replica {:<3} {}{}\n",
                     replica,
                     text,
                     reserve ? (request.redundancy > 0 ? "  (in reserve)" : "") : "");
}

std::string Ledger(const LayoutRequest& request, const Layout& layout) {
  std::string text =
      fmt::format("{:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9}\n",
                  "rank",
                  "embedding",
                  "attention",
                  "ffn",
                  "experts",
                  "head",
                  "activat.",
                  "collect.",
                  "KV cache",
                  "KV/token",
                  "headroom");
  for (std::size_t i = 0; i < std::min(layout.ranks.size(), kShownRanks); ++i) {
    const RankMemory& rank = layout.ranks[i];
    text += fmt::format(
        "{:>6} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>6.1f} "
        "KiB {:>7.1f} %\n",
        i,
        ClassGib(request, rank.parameters.embedding),
        ClassGib(request, rank.parameters.attention + rank.parameters.other),
        ClassGib(request, rank.parameters.ffn),
        ClassGib(request, rank.parameters.experts),
        ClassGib(request, rank.parameters.head),
        Gib(rank.ledger.activation_bytes),
        Gib(rank.ledger.collective_bytes),
        Gib(rank.ledger.kv_bytes),
        static_cast<double>(rank.ledger.kv_bytes_per_token) / 1024,
        100 * rank.headroom);
  }
  if (layout.ranks.size() > kShownRanks) {
    text += fmt::format("  ... and {} ranks more\n", layout.ranks.size() - kShownRanks);
  }
  return text + "(GiB per rank; headroom: what is left of the device for KV, in % of its memory)\n";
}

std::string Times(const char* what, const Prediction& at) {
  return fmt::format(
      "  {:<22} TTFT {:>8.1f} ms   TPOT {:>7.2f} ms   {:>6.1f} running   prompts take {:>3.0f} % "
      "of the time\n",
      what,
      Ms(at.ttft_s),
      Ms(at.tpot_s),
      at.running,
      100 * at.busy);
}

std::string Best(const LayoutRequest& request, const Layout& layout) {
  const spec::ParallelSpec& parallel = layout.parallel;
  std::string text = fmt::format(
      "best: --tp {} --pp {} --ep {}: {} replica(s) of {} rank(s){}{}; links: tp {}, pp {}, ep "
      "{}\n\n",
      parallel.tp,
      parallel.pp,
      parallel.ep,
      layout.replicas,
      parallel.ranks_per_replica(),
      layout.reserve > 0 ? fmt::format(", {} in reserve", layout.reserve) : "",
      layout.unused_devices > 0 ? fmt::format(", {} device(s) unused", layout.unused_devices) : "",
      ReachName(layout.links.tp),
      ReachName(layout.links.pp),
      ReachName(layout.links.ep));
  text += Ledger(request, layout);
  text += fmt::format(
      "\nKV cache of a replica: {} tokens; {:.0f} sequences of {:.0f} + {:.0f} tokens at once\n\n",
      layout.kv_tokens,
      layout.most_running,
      request.lengths.input,
      request.lengths.output);
  text += Times("one request, idle:", layout.alone);
  if (request.rate > 0) {
    text += layout.at_rate.stable
                ? Times(fmt::format("at {:.4g} requests/s:", request.rate).c_str(), layout.at_rate)
                : fmt::format("  at {:.4g} requests/s the queue grows without end\n", request.rate);
  }
  text += Times(fmt::format("at most ({:.4g}/s):", layout.max_rate).c_str(), layout.at_limit);
  text += fmt::format(
      "  {:.4g} requests/s and {:.0f} output tokens/s in all{}{}\n",
      layout.max_rate,
      layout.tokens_per_s,
      layout.cost_per_million > 0
          ? fmt::format("; {:.2f} per million output tokens at that load", layout.cost_per_million)
          : "",
      request.rate > 0 && layout.replicas_needed > 0
          ? fmt::format("; {} replica(s) carry the rate", layout.replicas_needed)
          : "");
  text += "\nplacement\n";
  const auto replicas = static_cast<std::size_t>(layout.replicas + layout.reserve);
  for (std::size_t i = 0; i < std::min(replicas, kShownReplicas); ++i) {
    text += Replica(request, layout, i);
  }
  if (replicas > kShownReplicas) {
    text += fmt::format("  ... and {} replicas more\n", replicas - kShownReplicas);
  }
  return text;
}

Json TimesJson(const Prediction& at) {
  return {{"stable", at.stable},
          {"ttft_ms", Rounded(Ms(at.ttft_s))},
          {"tpot_ms", Rounded(Ms(at.tpot_s))},
          {"running", Rounded(at.running)},
          {"prompt_share", Rounded(at.busy)},
          {"step_ms", Rounded(Ms(at.step_s))},
          {"output_tokens_per_s", Rounded(at.tokens_per_s)}};
}

Json RankJson(const LayoutRequest& request, const RankMemory& rank) {
  const auto bytes = [&](std::int64_t parameters) {
    return std::llround(static_cast<double>(parameters) * request.bytes_per_weight);
  };
  return {{"weights",
           {{"embedding", bytes(rank.parameters.embedding)},
            {"attention", bytes(rank.parameters.attention)},
            {"ffn", bytes(rank.parameters.ffn)},
            {"experts", bytes(rank.parameters.experts)},
            {"head", bytes(rank.parameters.head)},
            {"other", bytes(rank.parameters.other)},
            {"total", rank.ledger.weight_bytes}}},
          {"activation_bytes", rank.ledger.activation_bytes},
          {"collective_bytes", rank.ledger.collective_bytes},
          {"kv_bytes", rank.ledger.kv_bytes},
          {"kv_bytes_per_token", rank.ledger.kv_bytes_per_token},
          {"headroom_percent", Rounded(100 * rank.headroom)}};
}

Json LayoutJson(const LayoutRequest& request, const Layout& layout) {
  Json json;
  json["tp"] = layout.parallel.tp;
  json["pp"] = layout.parallel.pp;
  json["ep"] = layout.parallel.ep;
  json["replicas"] = layout.replicas;
  json["reserve"] = layout.reserve;
  json["unused_devices"] = layout.unused_devices;
  json["links"] = {{"tp", ReachName(layout.links.tp)},
                   {"pp", ReachName(layout.links.pp)},
                   {"ep", ReachName(layout.links.ep)}};
  json["kv_tokens_per_replica"] = layout.kv_tokens;
  json["sequences_per_replica"] = layout.most_running;
  json["meets_targets"] = layout.meets;
  json["max_requests_per_s"] = Rounded(layout.max_rate);
  json["output_tokens_per_s"] = Rounded(layout.tokens_per_s);
  json["cost_per_million_output_tokens"] =
      layout.cost_per_million > 0 ? Json(Rounded(layout.cost_per_million)) : Json(nullptr);
  json["replicas_needed"] =
      layout.replicas_needed > 0 ? Json(layout.replicas_needed) : Json(nullptr);
  json["idle"] = TimesJson(layout.alone);
  json["at_rate"] = request.rate > 0 ? TimesJson(layout.at_rate) : Json(nullptr);
  json["at_limit"] = TimesJson(layout.at_limit);
  json["ranks"] = Json::array();
  for (const RankMemory& rank : layout.ranks) {
    json["ranks"].push_back(RankJson(request, rank));
  }
  json["placement"] = Json::array();
  const auto ranks = static_cast<std::size_t>(layout.parallel.ranks_per_replica());
  for (std::size_t i = 0; i < layout.places.size(); i += ranks) {
    Json replica = Json::array();
    for (std::size_t k = i; k < i + ranks; ++k) {
      replica.push_back({{"node", layout.places[k].node}, {"device", layout.places[k].device}});
    }
    json["placement"].push_back(std::move(replica));
  }
  return json;
}

}  // namespace

std::string DescribeLayouts(const LayoutRequest& request, const LayoutPlan& plan) {
  const ClusterSpec& cluster = request.cluster;
  std::string text = fmt::format(
      "{}: {:.2f} billion parameters, {:.1f} GiB of weights at {:.2f} bytes; KV {:.1f} KiB per "
      "token\n"
      "{} node(s) of {} {}: {:.1f} GiB each, {:.0f} % may be used; {:.0f} + {:.0f} tokens a "
      "request\n\n",
      request.model.name,
      static_cast<double>(spec::CountParameters(request.model)) * 1e-9,
      Gib(static_cast<double>(spec::CountParameters(request.model)) * request.bytes_per_weight),
      request.bytes_per_weight,
      static_cast<double>(spec::KvValuesPerToken(request.model)) * request.kv_bytes_per_value /
          1024,
      cluster.nodes,
      cluster.per_node,
      cluster.device.name,
      Gib(cluster.device.memory_bytes),
      100 * request.memory_utilization,
      request.lengths.input,
      request.lengths.output);
  text += fmt::format("{:>4} {:>4} {:>4} {:>9} {:>9} {:>10} {:>12} {:>10} {:>10} {:>9}\n",
                      "tp",
                      "pp",
                      "ep",
                      "replicas",
                      "headroom",
                      "requests/s",
                      "tokens/s",
                      "TTFT idle",
                      "TPOT idle",
                      "targets");
  for (std::size_t i = 0; i < std::min(plan.layouts.size(), kShownLayouts); ++i) {
    const Layout& layout = plan.layouts[i];
    double headroom = 1;
    for (const RankMemory& rank : layout.ranks) {
      headroom = std::min(headroom, rank.headroom);
    }
    text += fmt::format(
        "{:>4} {:>4} {:>4} {:>9} {:>7.1f} % {:>10.2f} {:>12.0f} {:>7.0f} ms {:>7.2f} ms {:>9}\n",
        layout.parallel.tp,
        layout.parallel.pp,
        layout.parallel.ep,
        layout.replicas,
        100 * headroom,
        layout.max_rate,
        layout.tokens_per_s,
        Ms(layout.alone.ttft_s),
        Ms(layout.alone.tpot_s),
        layout.meets ? "met" : "not met");
  }
  text += "\n" + Best(request, plan.layouts.front());
  if (!plan.rejected.empty()) {
    text += fmt::format(
        "\n{} layout(s) do not fit; the last: {}\n", plan.rejected.size(), plan.rejected.back());
  }
  return text;
}

std::string LayoutsJson(const LayoutRequest& request, const LayoutPlan& plan) {
  Json json;
  json["model"] = {
      {"name", request.model.name},
      {"parameters", spec::CountParameters(request.model)},
      {"bytes_per_weight", request.bytes_per_weight},
      {"kv_bytes_per_token",
       static_cast<double>(spec::KvValuesPerToken(request.model)) * request.kv_bytes_per_value}};
  json["cluster"] = {{"device", request.cluster.device.name},
                     {"devices", request.cluster.devices()},
                     {"nodes", request.cluster.nodes},
                     {"domains", NodeDomains(request.cluster)},
                     {"memory_bytes", request.cluster.device.memory_bytes},
                     {"utilization", request.memory_utilization}};
  json["workload"] = {{"rate", request.rate},
                      {"input", request.lengths.input},
                      {"output", request.lengths.output},
                      {"target_ttft_ms", Ms(request.targets.ttft_s)},
                      {"target_itl_ms", Ms(request.targets.itl_s)}};
  json["layouts"] = Json::array();
  for (const Layout& layout : plan.layouts) {
    json["layouts"].push_back(LayoutJson(request, layout));
  }
  json["rejected"] = plan.rejected;
  return json.dump(2) + "\n";
}

}  // namespace inferd::plan
