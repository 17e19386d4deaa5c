// SPDX-License-Identifier: Apache-2.0
// Construction of a shard: arena, activations, groups. The forward pass is in shard_forward.cc, the
// head in shard_head.cc.
#include "model/shard.h"

#include "base/check.h"
#include "base/checked_math.h"
#include "base/error.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace inferd::model {
namespace {

// Rows of logits held at a time: bounded, since a row of a large vocabulary is most of a megabyte.
constexpr std::int64_t kMaxLogitRows = 64;

// Hands out 64-byte aligned float ranges; first a pass that only counts.
class Carver {
 public:
  explicit Carver(float* base) : base_(base) {}
  float* Take(std::int64_t rows, std::int64_t cols) {
    const std::size_t begin = used_;
    const std::size_t count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols);
    used_ += (count + 15) / 16 * 16;
    return base_ == nullptr ? nullptr : base_ + begin;
  }
  std::size_t bytes() const { return used_ * sizeof(float); }

 private:
  float* base_;
  std::size_t used_ = 0;
};

}  // namespace

Shard::Shard(const spec::ModelSpec& model,
             const spec::ShardPlan& plan,
             ShardWeights weights,
             ops::Device& device,
             const ShardOptions& options)
    : model_(model),
      plan_(plan),
      hidden_rows_(spec::HiddenRows(model, plan)),
      options_(options),
      device_(device),
      weights_(std::move(weights)) {}

Result<std::unique_ptr<Shard>> Shard::Make(const spec::ModelSpec& model,
                                           const spec::ShardPlan& plan,
                                           ShardWeights weights,
                                           ops::Device& device,
                                           const ShardOptions& options) {
  if (options.max_batched_tokens <= 0 || options.max_num_seqs <= 0 || options.max_model_len <= 0) {
    return InvalidArgument(
        "a shard needs positive limits; got {} batched tokens, {} sequences, {} model length",
        options.max_batched_tokens,
        options.max_num_seqs,
        options.max_model_len);
  }
  if (spec::HiddenRows(model, plan).size() == 0) {
    return InvalidArgument(
        "--tp {} is more than the {} values of a hidden state", plan.tp, model.hidden_size);
  }
  std::unique_ptr<Shard> shard(new Shard(model, plan, std::move(weights), device, options));
  INFERD_ASSIGN(shard->rope_, RopeTables::Make(model, options.max_model_len, device));
  INFERD_TRY(shard->NeedKv());
  shard->kv_head_of_ = spec::KvHeadOfQuery(model, plan);
  shard->max_logit_rows_ = std::min(options.max_num_seqs, kMaxLogitRows);
  INFERD_TRY(shard->AllocateArena());
  shard->AssignActivations();
  const std::int64_t page_tokens = device.PageTokens();
  INFERD_TRY(
      device.Reserve({.rows = options.max_batched_tokens,
                      .sequences = std::min(options.max_num_seqs, options.max_batched_tokens),
                      .pages_per_sequence = (options.max_model_len + page_tokens - 1) / page_tokens,
                      .kv_head_of = shard->kv_head_of_,
                      .head_dim = model.latent.used() ? model.latent.kv_rank : model.head_dim,
                      .row_lists = plan.ep > 1 ? 2 * plan.ep + 1 : 1,
                      .graph_sizes = options.cuda_graph_sizes,
                      .batch_invariant = options.batch_invariant}));
  for (const LayerWeights& layer : shard->weights_.layers) {
    if (!layer.expert_gate.empty() && layer.expert_gate.front() != nullptr) {
      ops::MoeTask task = shard->MoeTaskOf(layer);
      task.rows = options.max_batched_tokens * plan.ep;
      INFERD_TRY(device.PrepareMoe(task));
    }
  }
  INFERD_TRY(device.Wait());
  return shard;
}

// Graphs hold the addresses of the pages.
void Shard::ReleaseKv() {
  if (tensor::DeviceQueue* const queue = device_.queue(); queue != nullptr) {
    queue->DropRecordings();
  }
  kv_ = KvCache();
}

Result<> Shard::NeedKv() {
  if (kv_.num_pages() == 0) {
    INFERD_ASSIGN(
        kv_,
        KvCache::Make(
            device_, model_, plan_, options_.kv_type, options_.kv_scales, options_.kv_pages));
  }
  return {};
}

Result<> Shard::AllocateArena() {
  const std::int64_t tokens = options_.max_batched_tokens;
  const std::int64_t hidden = model_.hidden_size;
  const bool moe = model_.moe.num_experts > 0;
  const std::int64_t widest = std::max(plan_.ffn.size(), plan_.shared_ffn.size());
  const auto carve = [&](float* base) {
    Carver carver(base);
    x_ = carver.Take(tokens, hidden);
    y_ = carver.Take(tokens, hidden);
    part_ = plan_.tp > 1 ? carver.Take(tokens, hidden_rows_.size()) : nullptr;
    const std::int64_t heads = plan_.q_heads.size();
    if (const spec::LatentSpec& latent = model_.latent; latent.used()) {
      qkv_ = carver.Take(tokens, heads * model_.head_dim);
      q_latent_ = latent.q_rank > 0 ? carver.Take(tokens, latent.q_rank) : nullptr;
      latent_ = carver.Take(tokens, latent.width());
      latent_q_ = carver.Take(tokens, heads * latent.width());
      latent_y_ = carver.Take(tokens, heads * latent.kv_rank);
    } else {
      qkv_ = carver.Take(tokens, (heads + 2 * plan_.kv_heads.size()) * model_.head_dim);
    }
    attn_ = carver.Take(tokens, heads * model_.value_dim());
    gate_up_ = carver.Take(tokens, 2 * widest);
    normed_ = moe ? carver.Take(tokens, hidden) : nullptr;
    shared_y_ = moe ? carver.Take(tokens, hidden) : nullptr;
    shared_weight_ = moe ? carver.Take(tokens, 1) : nullptr;
    router_ = moe ? carver.Take(tokens, model_.moe.num_experts) : nullptr;
    head_in_ = plan_.has_head ? carver.Take(max_logit_rows_, hidden) : nullptr;
    logits_ = plan_.has_head ? carver.Take(max_logit_rows_, plan_.vocab.size()) : nullptr;
    return carver.bytes();
  };
  INFERD_ASSIGN(arena_, device_.Allocate(carve(nullptr), "activations"));
  carve(arena_.floats());
  INFERD_TRY(AllocateStaging());
  if (plan_.tp > 1) {
    const std::int64_t widest_in =
        std::max({model_.num_heads * model_.value_dim(), model_.intermediate_size, hidden});
    const std::int64_t logits = plan_.has_head ? max_logit_rows_ * model_.vocab_size : 0;
    const std::int64_t floats = std::max(tokens * widest_in, logits);
    INFERD_ASSIGN(gather_,
                  TpGather::Make(static_cast<std::size_t>(floats) * sizeof(float), device_));
  }
  if (moe) {
    const std::size_t bytes = static_cast<std::size_t>(tokens * model_.moe.top_k) * sizeof(float);
    INFERD_ASSIGN(expert_, device_.Allocate(bytes, "the chosen experts"));
    INFERD_ASSIGN(expert_weight_, device_.Allocate(bytes, "the chosen experts"));
    if (!device_.SharesHostMemory()) {
      const auto layers = static_cast<std::size_t>(plan_.layers.size());
      INFERD_ASSIGN(chosen_, device_.Allocate(layers * bytes, "the chosen experts"));
      for (StepOut& out : outs_) {
        INFERD_ASSIGN(out.chosen, device_.AllocateHost(layers * bytes, "the chosen experts"));
        out.num_chosen.resize(layers);
      }
    }
    expert_tokens_.resize(static_cast<std::size_t>(plan_.experts.size()));
    if (plan_.ep > 1) {
      INFERD_ASSIGN(exchange_,
                    ExpertExchange::Make(plan_.ep, tokens, hidden, model_.moe.top_k, device_));
    }
  }
  return {};
}

Result<> Shard::AllocateStaging() {
  const bool shares = device_.SharesHostMemory();
  if (!shares) {
    const std::int64_t widest = std::max(model_.hidden_size, model_.moe.num_experts);
    INFERD_ASSIGN(
        staging_,
        device_.AllocateHost(
            static_cast<std::size_t>(options_.max_batched_tokens * widest) * sizeof(float),
            "copies between host and device"));
  }
  if (!shares && (plan_.has_embedding || plan_.is_sampler())) {
    const std::size_t bytes =
        static_cast<std::size_t>(options_.max_num_seqs) * sizeof(std::int32_t);
    INFERD_ASSIGN(drawn_, device_.Allocate(outs_.size() * bytes, "tokens"));
    for (StepOut& out : outs_) {
      INFERD_ASSIGN(out.tokens, device_.AllocateHost(bytes, "tokens"));
    }
  }
  if (plan_.is_sampler() && (plan_.tp > 1 || !shares)) {
    INFERD_ASSIGN(
        host_logits_,
        device_.AllocateHost(static_cast<std::size_t>(max_logit_rows_) *
                                 static_cast<std::size_t>(model_.vocab_size) * sizeof(float),
                             "logits"));
    if (!shares && plan_.tp > 1) {
      INFERD_ASSIGN(device_logits_, device_.Allocate(host_logits_.bytes(), "logits"));
    }
  }
  return {};
}

ops::Activations* Shard::ActivationsFor(std::int64_t k,
                                        std::initializer_list<const ops::PackedMatrix*> matrices,
                                        unsigned carried) {
  unsigned forms = 0;
  for (const ops::PackedMatrix* matrix : matrices) {
    forms |= matrix != nullptr ? static_cast<unsigned>(matrix->form()) : 0U;
  }
  if (forms == 0) {
    return nullptr;
  }
  forms |= carried;
  for (const OwnedActivations& owned : activations_) {
    if (owned.k == k && owned.forms == forms) {
      return owned.act.get();
    }
  }
  activations_.push_back({k, forms, device_.NewActivations(options_.max_batched_tokens, k, forms)});
  return activations_.back().act.get();
}

void Shard::AssignActivations() {
  const std::int64_t hidden = model_.hidden_size;
  const unsigned carried = plan_.tp > 1 ? ops::kActCarried : 0U;
  for (const LayerWeights& w : weights_.layers) {
    LayerActivations act;
    if (w.q_a != nullptr) {
      act.attn_in = ActivationsFor(hidden, {w.q_a.get(), w.kv_a.get()});
      act.q_latent = ActivationsFor(model_.latent.q_rank, {w.q.get()});
    } else {
      act.attn_in = ActivationsFor(hidden, {w.q.get(), w.k.get(), w.v.get(), w.kv_a.get()});
    }
    act.attn_part = ActivationsFor(plan_.q_heads.size() * model_.value_dim(), {w.o.get()}, carried);
    act.attn_out = ActivationsFor(model_.num_heads * model_.value_dim(), {w.o.get()}, carried);
    act.ffn_in = ActivationsFor(hidden,
                                {w.gate.get(),
                                 w.up.get(),
                                 w.router.get(),
                                 w.shared_gate.get(),
                                 w.shared_up.get(),
                                 w.shared_expert_gate.get()});
    act.ffn_part = ActivationsFor(plan_.ffn.size(), {w.down.get()}, carried);
    act.ffn_mid = ActivationsFor(model_.intermediate_size, {w.down.get()}, carried);
    act.shared_mid = ActivationsFor(plan_.shared_ffn.size(), {w.shared_down.get()});
    layer_act_.push_back(act);
  }
  if (weights_.head != nullptr) {
    head_act_ = device_.NewActivations(max_logit_rows_, hidden, weights_.head->form());
  }
}

Result<> Shard::Join(comm::Communicator* tp, comm::Communicator* ep) {
  tp_ = tp;
  ep_ = ep;
  if ((tp != nullptr ? tp->size() : 1) != plan_.tp ||
      (ep != nullptr ? ep->size() : 1) != plan_.ep) {
    return FailedPrecondition("rank {} is cut for tp {} and ep {}, but joins groups of {} and {}",
                              plan_.rank,
                              plan_.tp,
                              plan_.ep,
                              tp != nullptr ? tp->size() : 1,
                              ep != nullptr ? ep->size() : 1);
  }
  // What the peers hold: indices far below 2^24 travel exactly as floats.
  const std::array mine = {static_cast<float>(plan_.vocab.size()),
                           static_cast<float>(plan_.q_heads.size() * model_.value_dim()),
                           static_cast<float>(plan_.ffn.size()),
                           static_cast<float>(hidden_rows_.size()),
                           static_cast<float>(plan_.experts.begin),
                           static_cast<float>(plan_.experts.end),
                           device_.RecordsGraphs() ? 1.0F : 0.0F};
  constexpr std::size_t kFields = mine.size();
  std::vector<float> all_ranks(mine.begin(), mine.end());
  if (tp_ != nullptr) {
    all_ranks.resize(kFields * static_cast<std::size_t>(plan_.tp));
    const std::vector<std::size_t> counts(static_cast<std::size_t>(plan_.tp), kFields);
    INFERD_TRY(tp_->AllGather(mine, all_ranks, counts));
    gather_->Join(tp_);
  }
  PlaceLogits();
  if (tp_ != nullptr || exchange_) {
    // All ranks record a step or none does. Where the host takes part in a layer there is no way
    // to.
    bool all = !exchange_ && tp_->device() != nullptr;
    for (std::size_t i = 6; i < all_ranks.size(); i += kFields) {
      all = all && all_ranks[i] != 0;
    }
    device_.ResetGraphs(all);
  }
  columns_ = {};
  spec::Range group_experts = plan_.experts;
  for (std::size_t i = 0; i < all_ranks.size(); i += kFields) {
    columns_.vocab.push_back(static_cast<std::int64_t>(all_ranks[i]));
    columns_.q.push_back(static_cast<std::int64_t>(all_ranks[i + 1]));
    columns_.ffn.push_back(static_cast<std::int64_t>(all_ranks[i + 2]));
    columns_.hidden.push_back(static_cast<std::int64_t>(all_ranks[i + 3]));
    group_experts.begin =
        std::min(group_experts.begin, static_cast<std::int64_t>(all_ranks[i + 4]));
    group_experts.end = std::max(group_experts.end, static_cast<std::int64_t>(all_ranks[i + 5]));
  }
  const auto sums_to = [](const std::vector<std::int64_t>& columns, std::int64_t total) {
    return std::accumulate(columns.begin(), columns.end(), std::int64_t{0}) == total;
  };
  if (!sums_to(columns_.vocab, model_.vocab_size) ||
      !sums_to(columns_.hidden, model_.hidden_size) ||
      !sums_to(columns_.q, model_.num_heads * model_.value_dim()) ||
      (plan_.ffn.size() > 0 && !sums_to(columns_.ffn, model_.intermediate_size))) {
    return FailedPrecondition("the shards of the tp group of rank {} do not add up to the model",
                              plan_.rank);
  }
  if (!exchange_) {
    return {};
  }
  const std::array<float, 2> held = {static_cast<float>(group_experts.begin),
                                     static_cast<float>(group_experts.end)};
  std::vector<float> groups(2 * static_cast<std::size_t>(plan_.ep));
  const std::vector<std::size_t> counts(static_cast<std::size_t>(plan_.ep), 2);
  INFERD_TRY(ep_->AllGather(held, groups, counts));
  std::vector<std::int32_t> owner(static_cast<std::size_t>(model_.moe.num_experts), -1);
  for (std::size_t group = 0; group < counts.size(); ++group) {
    for (auto e = static_cast<std::size_t>(groups[2 * group]);
         e < static_cast<std::size_t>(groups[2 * group + 1]);
         ++e) {
      if (e >= owner.size() || owner[e] >= 0) {
        return FailedPrecondition("expert {} is held by two groups, or there is no such expert", e);
      }
      owner[e] = static_cast<std::int32_t>(group);
    }
  }
  if (std::find(owner.begin(), owner.end(), -1) != owner.end()) {
    return FailedPrecondition("no group holds expert {}",
                              std::find(owner.begin(), owner.end(), -1) - owner.begin());
  }
  exchange_->Join(ep_, std::move(owner));
  return {};
}

void Shard::PlaceLogits() {
  all_on_device_ = !device_.SharesHostMemory() && (tp_ == nullptr || tp_->device() != nullptr);
  samples_on_device_ = all_on_device_ && device_.Samples();
  if (!plan_.is_sampler()) {
    all_logits_ = nullptr;
  } else if (gather_) {
    all_logits_ = all_on_device_ ? device_logits_.floats() : host_logits_.floats();
  } else {
    all_logits_ = logits_;
  }
}

Result<float*> Shard::ToHost(float* data, std::int64_t count) {
  if (device_.SharesHostMemory()) {
    return data;
  }
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  INFERD_CHECK(bytes <= staging_.bytes());
  device_.Copy(staging_.data(), data, bytes);
  INFERD_TRY(device_.Wait());
  return staging_.floats();
}

void Shard::FromHost(float* data, const float* host, std::int64_t count) {
  if (data != host) {
    device_.Copy(data, host, static_cast<std::size_t>(count) * sizeof(float));
  }
}

Result<> Shard::SendHidden(comm::Communicator* pp, int to, std::int64_t rows) {
  const std::int64_t count = rows * model_.hidden_size;
  if (comm::DeviceCollectives* const device = pp->device(); device != nullptr) {
    return device->Send(x_, static_cast<std::size_t>(count) * sizeof(float), to);
  }
  INFERD_ASSIGN(const float* const host, ToHost(x_, count));
  return pp->Send(std::as_bytes(std::span(host, static_cast<std::size_t>(count))), to);
}

Result<> Shard::ReceiveHidden(comm::Communicator* pp, int from, std::int64_t rows) {
  const std::int64_t count = rows * model_.hidden_size;
  if (comm::DeviceCollectives* const device = pp->device(); device != nullptr) {
    return device->Recv(x_, static_cast<std::size_t>(count) * sizeof(float), from);
  }
  float* host = x_;
  if (!device_.SharesHostMemory()) {
    INFERD_TRY(device_.Wait());  // An earlier copy out of staging may still run.
    host = staging_.floats();
  }
  INFERD_TRY(
      pp->Recv(std::as_writable_bytes(std::span(host, static_cast<std::size_t>(count))), from));
  FromHost(x_, host, count);
  return {};
}

std::int64_t Shard::activation_bytes() const {
  const std::size_t logits =
      device_.SharesHostMemory() ? host_logits_.bytes() : device_logits_.bytes();
  return static_cast<std::int64_t>(arena_.bytes() + logits) + rope_.bytes() +
         (gather_ ? gather_->bytes() : 0) + (exchange_ ? exchange_->bytes() : 0);
}

void Shard::ClearExpertTokens() { std::fill(expert_tokens_.begin(), expert_tokens_.end(), 0); }

void Shard::CountExperts(const std::int32_t* expert, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (plan_.experts.contains(expert[i])) {
      ++expert_tokens_[static_cast<std::size_t>(expert[i] - plan_.experts.begin)];
    }
  }
}

std::span<const std::int64_t> Shard::CountExpertTokens(std::size_t step) {
  const auto* chosen = reinterpret_cast<const std::int32_t*>(outs_[step].chosen.data());
  for (std::int64_t& count : outs_[step].num_chosen) {
    CountExperts(chosen, std::exchange(count, 0));
    chosen += options_.max_batched_tokens * model_.moe.top_k;
  }
  return expert_tokens_;
}

}  // namespace inferd::model
