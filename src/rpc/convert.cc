// SPDX-License-Identifier: Apache-2.0
#include "rpc/convert.h"

#include "base/error.h"
#include "inferd/v1/worker.pb.h"

#include <limits>

namespace inferd::rpc {
namespace {

/// Largest number of logprobs, pages, ... that one repeated field may hold; far above any real
/// step.
constexpr int kMaxRepeated = 16 << 20;
constexpr std::int32_t kMaxRanks = 4096;

// ---- spec to proto

void Put(const spec::Range& range, v1::Range* proto) {
  proto->set_begin(range.begin);
  proto->set_end(range.end);
}

void Put(const spec::ShardPlan& shard, v1::ShardPlan* proto) {
  proto->set_rank(shard.rank);
  proto->set_tp(shard.tp);
  proto->set_pp(shard.pp);
  proto->set_ep(shard.ep);
  proto->set_tp_rank(shard.tp_rank);
  proto->set_stage(shard.stage);
  proto->set_group(shard.group);
  Put(shard.layers, proto->mutable_layers());
  proto->set_has_embedding(shard.has_embedding);
  proto->set_has_head(shard.has_head);
  Put(shard.vocab, proto->mutable_vocab());
  Put(shard.q_heads, proto->mutable_q_heads());
  Put(shard.kv_heads, proto->mutable_kv_heads());
  Put(shard.ffn, proto->mutable_ffn());
  Put(shard.experts, proto->mutable_experts());
  Put(shard.expert_ffn, proto->mutable_expert_ffn());
  Put(shard.shared_ffn, proto->mutable_shared_ffn());
}

void Put(const spec::LoadRequest& load, v1::Load* proto) {
  proto->set_model_path(load.model_path);
  Put(load.shard, proto->mutable_shard());
  proto->set_max_num_seqs(load.max_num_seqs);
  proto->set_max_batched_tokens(load.max_batched_tokens);
  proto->set_max_model_len(load.max_model_len);
  proto->set_kv_pages(load.kv_pages);
  proto->set_kv_dtype(static_cast<std::int32_t>(load.kv_dtype));
  proto->set_quantization(load.quantization);
  proto->set_bf16_dot(load.bf16_dot);
  proto->set_device(load.device);
  proto->set_comm(static_cast<std::int32_t>(load.comm));
  proto->mutable_cuda_graph_sizes()->Add(load.cuda_graph_sizes.begin(),
                                         load.cuda_graph_sizes.end());
  proto->set_batch_invariant(load.batch_invariant);
  proto->set_threads(load.threads);
  proto->mutable_cpus()->Add(load.cpus.begin(), load.cpus.end());
}

void Put(const spec::GroupConfig& group, v1::Group* proto) {
  proto->set_id(group.id);
  proto->mutable_ranks()->Add(group.ranks.begin(), group.ranks.end());
  proto->set_shm(group.shm);
  for (const std::string& endpoint : group.endpoints) {
    proto->add_endpoints(endpoint);
  }
}

void Put(const spec::JoinRequest& join, v1::Join* proto) {
  proto->set_generation(join.generation);
  proto->set_step_deadline_ms(join.step_deadline_ms);
  Put(join.tp, proto->mutable_tp());
  Put(join.ep, proto->mutable_ep());
  Put(join.pp, proto->mutable_pp());
  Put(join.ids, proto->mutable_ids());
}

void Put(const spec::SamplingParams& params, v1::SamplingParams* proto) {
  proto->set_temperature(params.temperature);
  proto->set_top_p(params.top_p);
  proto->set_min_p(params.min_p);
  proto->set_top_k(params.top_k);
  proto->set_repetition_penalty(params.repetition_penalty);
  proto->set_presence_penalty(params.presence_penalty);
  proto->set_frequency_penalty(params.frequency_penalty);
  for (const auto& [token, bias] : params.logit_bias) {
    v1::LogitBias* item = proto->add_logit_bias();
    item->set_token(token);
    item->set_bias(bias);
  }
  proto->set_seed(params.seed);
  proto->set_logprobs(params.logprobs);
  proto->set_prompt_logprobs(params.prompt_logprobs);
  proto->mutable_allowed_tokens()->Add(params.allowed_tokens.begin(), params.allowed_tokens.end());
  for (const std::vector<std::int32_t>& word : params.bad_words) {
    proto->add_bad_words()->mutable_tokens()->Add(word.begin(), word.end());
  }
  proto->set_min_tokens(params.min_tokens);
  proto->mutable_end_tokens()->Add(params.end_tokens.begin(), params.end_tokens.end());
  proto->set_typical_p(params.typical_p);
  proto->set_xtc_probability(params.xtc_probability);
  proto->set_xtc_threshold(params.xtc_threshold);
  proto->set_dynatemp_range(params.dynatemp_range);
  proto->set_dynatemp_exponent(params.dynatemp_exponent);
  proto->set_dry_multiplier(params.dry_multiplier);
  proto->set_dry_base(params.dry_base);
  proto->set_dry_allowed_length(params.dry_allowed_length);
  proto->set_dry_last_n(params.dry_last_n);
  proto->mutable_dry_breakers()->Add(params.dry_breakers.begin(), params.dry_breakers.end());
  for (const spec::SamplerKind kind : params.samplers) {
    proto->add_samplers(static_cast<std::int32_t>(kind));
  }
}

void Put(const spec::TokenMask& mask, v1::TokenMask* proto) {
  proto->set_generation(mask.generation);
  proto->set_step(mask.step);
  proto->set_group(mask.group);
  proto->set_row(mask.row);
  proto->set_kind(static_cast<v1::TokenMask::Kind>(mask.kind));
  proto->mutable_tokens()->Add(mask.tokens.begin(), mask.tokens.end());
  std::string* bytes = proto->mutable_bits();
  bytes->reserve(mask.bits.size() * 4);
  for (const std::uint32_t word : mask.bits) {
    for (int shift = 0; shift < 32; shift += 8) {
      bytes->push_back(static_cast<char>(word >> shift & 0xFF));
    }
  }
}

void PutIndexes(const std::vector<std::pair<std::int32_t, std::int32_t>>& from,
                google::protobuf::RepeatedPtrField<v1::GroupIndex>* to) {
  for (const auto& [group, index] : from) {
    v1::GroupIndex* item = to->Add();
    item->set_group(group);
    item->set_index(index);
  }
}

void Put(const spec::StepPlan& plan, v1::StepPlan* proto) {
  proto->set_generation(plan.generation);
  proto->set_step(plan.step);
  for (const spec::OpenRow& row : plan.open_rows) {
    v1::OpenRow* item = proto->add_open_rows();
    item->set_row(row.row);
    item->set_group(row.group);
    item->mutable_tokens()->Add(row.tokens.begin(), row.tokens.end());
    item->set_num_prompt_tokens(row.num_prompt_tokens);
    Put(row.sampling, item->mutable_sampling());
    item->set_constrained(row.constrained);
  }
  PutIndexes(plan.close_rows, proto->mutable_close_rows());
  PutIndexes(plan.fresh_pages, proto->mutable_fresh_pages());
  for (const spec::RowWork& work : plan.work) {
    v1::RowWork* item = proto->add_work();
    item->set_row(work.row);
    item->set_group(work.group);
    item->set_start(work.start);
    item->set_count(work.count);
    item->set_sample(work.sample);
    item->set_embed(work.embed);
    item->set_input_step(work.input_step);
    item->mutable_new_pages()->Add(work.new_pages.begin(), work.new_pages.end());
    item->set_reset_pages(work.reset_pages);
    item->mutable_draft()->Add(work.draft.begin(), work.draft.end());
  }
}

void Put(const spec::SampledToken& token, v1::SampledToken* proto) {
  proto->set_row(token.row);
  proto->set_group(token.group);
  proto->set_token(token.token);
  proto->set_logprob(token.logprob);
  proto->set_rank(token.rank);
  for (const spec::TokenLogprob& top : token.top) {
    v1::TokenLogprob* item = proto->add_top();
    item->set_token(top.token);
    item->set_logprob(top.logprob);
  }
}

void Put(const spec::StepResult& result, v1::StepResult* proto) {
  proto->set_generation(result.generation);
  proto->set_step(result.step);
  proto->set_group(result.group);
  for (const spec::SampledToken& token : result.sampled) {
    Put(token, proto->add_sampled());
  }
  for (const spec::PromptLogprobs& prompt : result.prompt_logprobs) {
    v1::RowPromptLogprobs* item = proto->add_prompt_logprobs();
    item->set_row(prompt.row);
    item->set_group(prompt.group);
    item->set_first(prompt.first);
    for (const spec::SampledToken& token : prompt.tokens) {
      Put(token, item->add_tokens());
    }
  }
  for (const spec::RowEmbedding& embedding : result.embeddings) {
    v1::RowEmbedding* item = proto->add_embeddings();
    item->set_row(embedding.row);
    item->set_group(embedding.group);
    item->mutable_values()->Add(embedding.values.begin(), embedding.values.end());
  }
  proto->set_compute_ns(result.compute_ns);
  proto->mutable_expert_tokens()->Add(result.expert_tokens.begin(), result.expert_tokens.end());
}

// ---- proto to spec

spec::Range Get(const v1::Range& proto) { return {proto.begin(), proto.end()}; }

Result<spec::ShardPlan> Get(const v1::ShardPlan& proto) {
  spec::ShardPlan shard;
  shard.rank = proto.rank();
  shard.tp = proto.tp();
  shard.pp = proto.pp();
  shard.ep = proto.ep();
  shard.tp_rank = proto.tp_rank();
  shard.stage = proto.stage();
  shard.group = proto.group();
  shard.layers = Get(proto.layers());
  shard.has_embedding = proto.has_embedding();
  shard.has_head = proto.has_head();
  shard.vocab = Get(proto.vocab());
  shard.q_heads = Get(proto.q_heads());
  shard.kv_heads = Get(proto.kv_heads());
  shard.ffn = Get(proto.ffn());
  shard.experts = Get(proto.experts());
  shard.expert_ffn = Get(proto.expert_ffn());
  shard.shared_ffn = Get(proto.shared_ffn());
  const bool sizes_ok = shard.tp >= 1 && shard.pp >= 1 && shard.ep >= 1 && shard.tp <= kMaxRanks &&
                        shard.pp <= kMaxRanks && shard.ep <= kMaxRanks;
  const bool places_ok = shard.tp_rank >= 0 && shard.tp_rank < shard.tp && shard.stage >= 0 &&
                         shard.stage < shard.pp && shard.group >= 0 && shard.group < shard.ep;
  if (!sizes_ok || !places_ok) {
    return InvalidArgument(
        "shard plan of rank {}: tp {}/{}, stage {}/{}, group {}/{} is no place in a replica",
        shard.rank,
        shard.tp_rank,
        shard.tp,
        shard.stage,
        shard.pp,
        shard.group,
        shard.ep);
  }
  return shard;
}

Result<spec::LoadRequest> Get(const v1::Load& proto) {
  spec::LoadRequest load;
  load.model_path = proto.model_path();
  INFERD_ASSIGN(load.shard, Get(proto.shard()));
  load.max_num_seqs = proto.max_num_seqs();
  load.max_batched_tokens = proto.max_batched_tokens();
  load.max_model_len = proto.max_model_len();
  load.kv_pages = proto.kv_pages();
  if (proto.kv_dtype() < 0 || proto.kv_dtype() > static_cast<int>(spec::KvDtype::kInt8)) {
    return InvalidArgument("load request: unknown KV dtype {}", proto.kv_dtype());
  }
  load.kv_dtype = static_cast<spec::KvDtype>(proto.kv_dtype());
  load.quantization = proto.quantization();
  load.bf16_dot = proto.bf16_dot();
  load.device = proto.device();
  if (proto.comm() < 0 || proto.comm() > static_cast<int>(spec::CommBackend::kHost)) {
    return InvalidArgument("load request: unknown comm backend {}", proto.comm());
  }
  load.comm = static_cast<spec::CommBackend>(proto.comm());
  load.cuda_graph_sizes.assign(proto.cuda_graph_sizes().begin(), proto.cuda_graph_sizes().end());
  load.batch_invariant = proto.batch_invariant();
  load.threads = proto.threads();
  load.cpus.assign(proto.cpus().begin(), proto.cpus().end());
  for (const std::int32_t size : load.cuda_graph_sizes) {
    if (size < 1 || size > load.max_batched_tokens) {
      return InvalidArgument("load request: a CUDA graph of {} rows", size);
    }
  }
  if (load.max_num_seqs < 1 || load.max_batched_tokens < 1 || load.max_model_len < 1 ||
      load.kv_pages < 1 || load.threads < 1) {
    return InvalidArgument(
        "load request: a size below 1 (seqs {}, tokens {}, length {}, pages {}, threads {})",
        load.max_num_seqs,
        load.max_batched_tokens,
        load.max_model_len,
        load.kv_pages,
        load.threads);
  }
  return load;
}

spec::GroupConfig Get(const v1::Group& proto) {
  spec::GroupConfig group;
  group.id = proto.id();
  group.ranks.assign(proto.ranks().begin(), proto.ranks().end());
  group.shm = proto.shm();
  group.endpoints.assign(proto.endpoints().begin(), proto.endpoints().end());
  return group;
}

spec::JoinRequest Get(const v1::Join& proto) {
  return {.generation = proto.generation(),
          .step_deadline_ms = proto.step_deadline_ms(),
          .tp = Get(proto.tp()),
          .ep = Get(proto.ep()),
          .pp = Get(proto.pp()),
          .ids = Get(proto.ids())};
}

spec::SamplingParams Get(const v1::SamplingParams& proto) {
  spec::SamplingParams params;
  params.temperature = proto.temperature();
  params.top_p = proto.top_p();
  params.min_p = proto.min_p();
  params.top_k = proto.top_k();
  params.repetition_penalty = proto.repetition_penalty();
  params.presence_penalty = proto.presence_penalty();
  params.frequency_penalty = proto.frequency_penalty();
  for (const v1::LogitBias& item : proto.logit_bias()) {
    params.logit_bias.emplace_back(item.token(), item.bias());
  }
  params.seed = proto.seed();
  params.logprobs = proto.logprobs();
  params.prompt_logprobs = proto.prompt_logprobs();
  params.allowed_tokens.assign(proto.allowed_tokens().begin(), proto.allowed_tokens().end());
  for (const v1::TokenList& word : proto.bad_words()) {
    params.bad_words.emplace_back(word.tokens().begin(), word.tokens().end());
  }
  params.min_tokens = proto.min_tokens();
  params.end_tokens.assign(proto.end_tokens().begin(), proto.end_tokens().end());
  params.typical_p = proto.typical_p();
  params.xtc_probability = proto.xtc_probability();
  params.xtc_threshold = proto.xtc_threshold();
  params.dynatemp_range = proto.dynatemp_range();
  params.dynatemp_exponent = proto.dynatemp_exponent();
  params.dry_multiplier = proto.dry_multiplier();
  params.dry_base = proto.dry_base();
  params.dry_allowed_length = proto.dry_allowed_length();
  params.dry_last_n = proto.dry_last_n();
  params.dry_breakers.assign(proto.dry_breakers().begin(), proto.dry_breakers().end());
  for (const std::int32_t kind : proto.samplers()) {
    if (kind >= 0 && kind <= static_cast<std::int32_t>(spec::SamplerKind::kXtc)) {
      params.samplers.push_back(static_cast<spec::SamplerKind>(kind));
    }
  }
  return params;
}

Result<spec::TokenMask> Get(const v1::TokenMask& proto) {
  spec::TokenMask mask;
  mask.generation = proto.generation();
  mask.step = proto.step();
  mask.group = proto.group();
  mask.row = proto.row();
  const bool known = v1::TokenMask::Kind_IsValid(proto.kind());
  if (!known || mask.row < 0 || proto.tokens_size() > kMaxRepeated ||
      proto.bits().size() > static_cast<std::size_t>(kMaxRepeated) ||
      proto.bits().size() % 4 != 0) {
    return InvalidArgument("token mask of step {}, row {} is malformed", mask.step, mask.row);
  }
  mask.kind = static_cast<spec::TokenMask::Kind>(proto.kind());
  mask.tokens.assign(proto.tokens().begin(), proto.tokens().end());
  mask.bits.resize(proto.bits().size() / 4);
  for (std::size_t i = 0; i < proto.bits().size(); ++i) {
    const auto byte = static_cast<std::uint32_t>(static_cast<unsigned char>(proto.bits()[i]));
    mask.bits[i / 4] |= byte << (i % 4 * 8);
  }
  return mask;
}

Result<spec::StepPlan> Get(const v1::StepPlan& proto) {
  spec::StepPlan plan;
  plan.generation = proto.generation();
  plan.step = proto.step();
  for (const v1::OpenRow& item : proto.open_rows()) {
    spec::OpenRow& row = plan.open_rows.emplace_back();
    row.row = item.row();
    row.group = item.group();
    row.tokens.assign(item.tokens().begin(), item.tokens().end());
    row.num_prompt_tokens = item.num_prompt_tokens();
    row.sampling = Get(item.sampling());
    row.constrained = item.constrained();
  }
  for (const v1::GroupIndex& item : proto.close_rows()) {
    plan.close_rows.emplace_back(item.group(), item.index());
  }
  for (const v1::GroupIndex& item : proto.fresh_pages()) {
    plan.fresh_pages.emplace_back(item.group(), item.index());
  }
  for (const v1::RowWork& item : proto.work()) {
    spec::RowWork& work = plan.work.emplace_back();
    work.row = item.row();
    work.group = item.group();
    work.start = item.start();
    work.count = item.count();
    work.sample = item.sample();
    work.embed = item.embed();
    work.input_step = item.input_step();
    work.new_pages.assign(item.new_pages().begin(), item.new_pages().end());
    work.reset_pages = item.reset_pages();
    work.draft.assign(item.draft().begin(), item.draft().end());
    if (work.row < 0 || work.start < 0 || work.count < 1) {
      return InvalidArgument("step {}: work of row {} at {} + {} is out of range",
                             plan.step,
                             work.row,
                             work.start,
                             work.count);
    }
  }
  return plan;
}

spec::SampledToken Get(const v1::SampledToken& proto) {
  spec::SampledToken token;
  token.row = proto.row();
  token.group = proto.group();
  token.token = proto.token();
  token.logprob = proto.logprob();
  token.rank = proto.rank();
  for (const v1::TokenLogprob& item : proto.top()) {
    token.top.push_back({item.token(), item.logprob()});
  }
  return token;
}

spec::StepResult Get(const v1::StepResult& proto) {
  spec::StepResult result;
  result.generation = proto.generation();
  result.step = proto.step();
  result.group = proto.group();
  for (const v1::SampledToken& item : proto.sampled()) {
    result.sampled.push_back(Get(item));
  }
  for (const v1::RowPromptLogprobs& item : proto.prompt_logprobs()) {
    spec::PromptLogprobs& prompt = result.prompt_logprobs.emplace_back();
    prompt.row = item.row();
    prompt.group = item.group();
    prompt.first = item.first();
    for (const v1::SampledToken& token : item.tokens()) {
      prompt.tokens.push_back(Get(token));
    }
  }
  for (const v1::RowEmbedding& item : proto.embeddings()) {
    result.embeddings.push_back(
        {item.row(), item.group(), {item.values().begin(), item.values().end()}});
  }
  result.compute_ns = proto.compute_ns();
  result.expert_tokens.assign(proto.expert_tokens().begin(), proto.expert_tokens().end());
  return result;
}

Hello Get(const v1::Hello& proto) {
  return {.kind = proto.kind() == v1::Hello::NODE_AGENT ? Hello::Kind::kNodeAgent
                                                        : Hello::Kind::kWorker,
          .build = proto.build(),
          .worker_id = proto.worker_id(),
          .node_rank = proto.node_rank(),
          .pid = proto.pid(),
          .data_endpoint = proto.data_endpoint(),
          .num_cpus = proto.num_cpus(),
          .memory_bytes = proto.memory_bytes()};
}

void Put(const Hello& hello, v1::Hello* proto) {
  proto->set_kind(hello.kind == Hello::Kind::kNodeAgent ? v1::Hello::NODE_AGENT
                                                        : v1::Hello::WORKER);
  proto->set_build(hello.build);
  proto->set_worker_id(hello.worker_id);
  proto->set_node_rank(hello.node_rank);
  proto->set_pid(hello.pid);
  proto->set_data_endpoint(hello.data_endpoint);
  proto->set_num_cpus(hello.num_cpus);
  proto->set_memory_bytes(hello.memory_bytes);
}

struct FromWorkerWriter {
  v1::FromWorker* proto;
  void operator()(const Hello& m) const { Put(m, proto->mutable_hello()); }
  void operator()(const LoadProgress& m) const {
    proto->mutable_load_progress()->set_bytes_done(m.bytes_done);
    proto->mutable_load_progress()->set_bytes_total(m.bytes_total);
  }
  void operator()(const Loaded& m) const {
    proto->mutable_loaded()->set_weight_bytes(m.weight_bytes);
    proto->mutable_loaded()->set_kv_bytes(m.kv_bytes);
    proto->mutable_loaded()->set_device(m.device);
  }
  void operator()(const Joined& m) const { proto->mutable_joined()->set_generation(m.generation); }
  void operator()(const spec::StepResult& m) const { Put(m, proto->mutable_step_result()); }
  void operator()(const Fault& m) const {
    v1::Fault* fault = proto->mutable_fault();
    fault->set_generation(m.generation);
    fault->set_code(static_cast<int>(m.code));
    fault->set_message(m.message);
    fault->set_fatal(m.fatal);
  }
  void operator()(const Idle& m) const { proto->mutable_idle()->set_generation(m.generation); }
  void operator()(const WorkerExited& m) const {
    proto->mutable_worker_exited()->set_worker_id(m.worker_id);
    proto->mutable_worker_exited()->set_wait_status(m.wait_status);
  }
};

struct ToWorkerWriter {
  v1::ToWorker* proto;
  void operator()(const spec::LoadRequest& m) const { Put(m, proto->mutable_load()); }
  void operator()(const spec::JoinRequest& m) const { Put(m, proto->mutable_join()); }
  void operator()(const spec::StepPlan& m) const { Put(m, proto->mutable_step_plan()); }
  void operator()(const Abort& m) const {
    proto->mutable_abort()->set_generation(m.generation);
    proto->mutable_abort()->set_release_memory(m.release_memory);
  }
  void operator()(const Shutdown&) const { proto->mutable_shutdown(); }
  void operator()(const SpawnWorker& m) const {
    proto->mutable_spawn_worker()->set_worker_id(m.worker_id);
  }
  void operator()(const KillWorker& m) const {
    proto->mutable_kill_worker()->set_worker_id(m.worker_id);
  }
  void operator()(const spec::TokenMask& m) const { Put(m, proto->mutable_token_mask()); }
};

}  // namespace

void ToProto(const FromWorker& message, v1::FromWorker* proto) {
  std::visit(FromWorkerWriter{proto}, message);
}
void ToProto(const ToWorker& message, v1::ToWorker* proto) {
  std::visit(ToWorkerWriter{proto}, message);
}

Result<FromWorker> FromProto(const v1::FromWorker& proto) {
  switch (proto.body_case()) {
    case v1::FromWorker::kHello:
      return FromWorker(Get(proto.hello()));
    case v1::FromWorker::kLoadProgress:
      return FromWorker(
          LoadProgress{proto.load_progress().bytes_done(), proto.load_progress().bytes_total()});
    case v1::FromWorker::kLoaded:
      return FromWorker(Loaded{
          proto.loaded().weight_bytes(), proto.loaded().kv_bytes(), proto.loaded().device()});
    case v1::FromWorker::kJoined:
      return FromWorker(Joined{proto.joined().generation()});
    case v1::FromWorker::kStepResult:
      if (proto.step_result().sampled_size() > kMaxRepeated) {
        return InvalidArgument("step result with {} tokens", proto.step_result().sampled_size());
      }
      return FromWorker(Get(proto.step_result()));
    case v1::FromWorker::kFault: {
      const int code = proto.fault().code();
      const bool known = code >= 1 && code <= static_cast<int>(Code::kUnauthenticated);
      return FromWorker(Fault{proto.fault().generation(),
                              known ? static_cast<Code>(code) : Code::kUnknown,
                              proto.fault().message(),
                              proto.fault().fatal()});
    }
    case v1::FromWorker::kIdle:
      return FromWorker(Idle{proto.idle().generation()});
    case v1::FromWorker::kWorkerExited:
      return FromWorker(
          WorkerExited{proto.worker_exited().worker_id(), proto.worker_exited().wait_status()});
    case v1::FromWorker::BODY_NOT_SET:
      break;
  }
  return InvalidArgument("message from a worker of an unknown kind");
}

Result<ToWorker> FromProto(const v1::ToWorker& proto) {
  switch (proto.body_case()) {
    case v1::ToWorker::kLoad: {
      INFERD_ASSIGN(spec::LoadRequest load, Get(proto.load()));
      return ToWorker(std::move(load));
    }
    case v1::ToWorker::kJoin:
      return ToWorker(Get(proto.join()));
    case v1::ToWorker::kStepPlan: {
      INFERD_ASSIGN(spec::StepPlan plan, Get(proto.step_plan()));
      return ToWorker(std::move(plan));
    }
    case v1::ToWorker::kAbort:
      return ToWorker(Abort{proto.abort().generation(), proto.abort().release_memory()});
    case v1::ToWorker::kShutdown:
      return ToWorker(Shutdown{});
    case v1::ToWorker::kSpawnWorker:
      return ToWorker(SpawnWorker{proto.spawn_worker().worker_id()});
    case v1::ToWorker::kKillWorker:
      return ToWorker(KillWorker{proto.kill_worker().worker_id()});
    case v1::ToWorker::kTokenMask: {
      INFERD_ASSIGN(spec::TokenMask mask, Get(proto.token_mask()));
      return ToWorker(std::move(mask));
    }
    case v1::ToWorker::BODY_NOT_SET:
      break;
  }
  return InvalidArgument("message from the leader of an unknown kind");
}

}  // namespace inferd::rpc
