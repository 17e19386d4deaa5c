// SPDX-License-Identifier: Apache-2.0
// vllm.grpc.engine.VllmEngine: token ids in and out, as routers that tokenise themselves speak it.
#include "api/core/fields.h"
#include "api/core/generate_params.h"
#include "api/core/limits.h"
#include "api/grpc/services.h"
#include "api/grpc/stream_call.h"
#include "api/grpc/unary_call.h"
#include "api/grpc/vllm_format.h"
#include "api/openai/completion_request.h"
#include "api/openai/embedding_request.h"
#include "base/error.h"
#include "inferd/version.h"
#include "vllm/vllm_engine.grpc.pb.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <ctime>
#include <string>
#include <utility>

namespace inferd::api {
namespace {

namespace pb = vllm::grpc::engine;
using Context = ::grpc::CallbackServerContext;
using Reactor = ::grpc::ServerUnaryReactor;
using Json = nlohmann::ordered_json;

/// Numbers that JSON has not (NaN) are left for the limits to refuse.
Result<> SetReal(const char* name, float value, Json* body, Fault* fault) {
  if (!std::isfinite(value)) {
    return FieldError(fault, name, "{} must be a finite number", name);
  }
  // The shortest decimal that is this float: 0.7F is asked as 0.7.
  (*body)[name] = std::strtod(fmt::format("{}", value).c_str(), nullptr);
  return {};
}

/// Zero stands for "not set", as in the protocol.
Result<> SetRealUnlessZero(const char* name, float value, Json* body, Fault* fault) {
  return value == 0 ? Result<>() : SetReal(name, value, body, fault);
}

void SetConstraint(const pb::SamplingParams& params, Json* body) {
  switch (params.constraint_case()) {
    case pb::SamplingParams::kJsonSchema:
      (*body)["structured_outputs"]["json"] = params.json_schema();
      break;
    case pb::SamplingParams::kRegex:
      (*body)["structured_outputs"]["regex"] = params.regex();
      break;
    case pb::SamplingParams::kGrammar:
      (*body)["structured_outputs"]["grammar"] = params.grammar();
      break;
    case pb::SamplingParams::kStructuralTag:
      (*body)["structured_outputs"]["structural_tag"] = params.structural_tag();
      break;
    case pb::SamplingParams::kJsonObject:
      if (params.json_object()) {
        (*body)["response_format"]["type"] = "json_object";
      }
      break;
    case pb::SamplingParams::kChoice:
      for (const std::string& choice : params.choice().choices()) {
        (*body)["structured_outputs"]["choice"].push_back(choice);
      }
      break;
    case pb::SamplingParams::CONSTRAINT_NOT_SET:
      break;
  }
}

Result<> SetSampling(const pb::SamplingParams& params, Json* body, Fault* fault) {
  Json& out = *body;
  INFERD_TRY(
      SetReal("temperature", params.has_temperature() ? params.temperature() : 1, body, fault));
  INFERD_TRY(SetRealUnlessZero("top_p", params.top_p(), body, fault));
  INFERD_TRY(SetReal("min_p", params.min_p(), body, fault));
  INFERD_TRY(SetReal("frequency_penalty", params.frequency_penalty(), body, fault));
  INFERD_TRY(SetReal("presence_penalty", params.presence_penalty(), body, fault));
  INFERD_TRY(SetRealUnlessZero("repetition_penalty", params.repetition_penalty(), body, fault));
  out["top_k"] = params.top_k();
  out["min_tokens"] = params.min_tokens();
  out["n"] = params.n() == 0 ? 1 : params.n();
  out["skip_special_tokens"] = params.skip_special_tokens();
  out["ignore_eos"] = params.ignore_eos();
  out["include_stop_str_in_output"] = params.include_stop_str_in_output();
  if (params.stop_size() > 0) {
    out["stop"] = Json(std::vector<std::string>(params.stop().begin(), params.stop().end()));
  }
  for (const std::uint32_t id : params.stop_token_ids()) {
    out["stop_token_ids"].push_back(id);
  }
  for (const auto& [id, bias] : params.logit_bias()) {
    INFERD_TRY(SetReal(std::to_string(id).c_str(), bias, &out["logit_bias"], fault));
  }
  if (params.has_seed()) {
    out["seed"] = params.seed();
  }
  if (params.has_logprobs()) {
    out["logprobs"] = params.logprobs();
  }
  if (params.has_prompt_logprobs()) {
    out["prompt_logprobs"] = params.prompt_logprobs();
  }
  if (params.has_truncate_prompt_tokens()) {
    out["truncate_prompt_tokens"] = params.truncate_prompt_tokens();
  }
  SetConstraint(params, body);
  return {};
}

Result<> RefuseForeign(const pb::GenerateRequest& request, Fault* fault) {
  const char* what = request.has_mm_inputs()                 ? "mm_inputs"
                     : request.has_kv_transfer_params()      ? "kv_transfer_params"
                     : request.has_kv_transfer_params_json() ? "kv_transfer_params_json"
                                                             : nullptr;
  return what == nullptr ? Result<>() : NotSupported(fault, what);
}

/// The request as a completion of one prompt.
Result<Json> ReadGenerate(const ServerContext& context,
                          const pb::GenerateRequest& request,
                          Fault* fault) {
  INFERD_TRY(RefuseForeign(request, fault));
  Json body;
  INFERD_TRY(SetSampling(request.sampling_params(), &body, fault));
  std::int64_t length = 0;
  if (request.input_case() == pb::GenerateRequest::kText) {
    body["prompt"] = request.text();
  } else {
    const auto& ids = request.tokenized().input_ids();
    length = ids.size();
    body["prompt"] = Json(std::vector<std::uint32_t>(ids.begin(), ids.end()));
  }
  if (request.sampling_params().has_max_tokens()) {
    body["max_tokens"] = request.sampling_params().max_tokens();
  } else if (length > 0) {  // what fits
    body["max_tokens"] = std::max<std::int64_t>(context.service.max_model_len() - length, 1);
  }
  return body;
}

PrepareCall PrepareGenerate(const pb::GenerateRequest* request,
                            std::deque<pb::GenerateResponse>* queue) {
  return [=](const ServerContext& context, Fault* fault) -> Result<PreparedCall> {
    INFERD_ASSIGN(const Json body, ReadGenerate(context, *request, fault));
    INFERD_ASSIGN(GenerationSpec spec, ParseCompletion(context, Fields(body, fault)));
    const bool logprobs = spec.logprobs;
    spec.logprobs = true;  // they carry the ids; without, their values are not computed
    spec.stream = true;    // the call is one; its format may still wait for the end
    const auto prompt_tokens = static_cast<std::uint32_t>(spec.requests.front().prompt.size());
    spec.format =
        std::make_unique<VllmFormat>(queue, request->stream(), logprobs, spec.n, prompt_tokens);
    PreparedCall prepared;
    if (!request->request_id().empty()) {
      prepared.ids.push_back(request->request_id());
    }
    prepared.generation = std::make_unique<Generation>(std::move(spec));
    return prepared;
  };
}

PrepareCall PrepareEmbed(const pb::EmbedRequest* request, pb::EmbedResponse* response) {
  return [=](const ServerContext& context, Fault* fault) -> Result<PreparedCall> {
    const auto& ids = request->tokenized().input_ids();
    Json body;
    body["input"] = Json(std::vector<std::uint32_t>(ids.begin(), ids.end()));
    INFERD_ASSIGN(EmbeddingRequest embedding, ParseEmbedding(context, Fields(body, fault)));
    embedding.spec.format = std::make_unique<VllmEmbedFormat>(response);
    PreparedCall prepared;
    if (!request->request_id().empty()) {
      prepared.ids.push_back(request->request_id());
    }
    prepared.generation = std::make_unique<Generation>(std::move(embedding.spec));
    return prepared;
  };
}

void SetLoads(const ServerContext& context, pb::GetLoadsResponse* response) {
  const auto stats = context.service.stats();
  response->set_version(std::string(kVersion));
  response->set_dp_rank_count(static_cast<std::int32_t>(stats.size()));
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char text[32] = "";
  gmtime_r(&now, &utc);
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  response->set_timestamp(text);
  for (const auto& replica : stats) {
    auto* const load = response->add_loads();
    load->set_dp_rank(response->loads_size() - 1);
    load->set_num_running_reqs(static_cast<std::int32_t>(replica.running));
    load->set_num_waiting_reqs(static_cast<std::int32_t>(replica.waiting));
    load->set_num_total_reqs(static_cast<std::int32_t>(replica.running + replica.waiting));
    if (replica.kv_pages_total > 0) {
      load->set_token_usage(static_cast<double>(replica.kv_pages_used) /
                            static_cast<double>(replica.kv_pages_total));
    }
    if (replica.prefix_queries > 0) {
      load->set_cache_hit_rate(static_cast<double>(replica.prefix_hits) /
                               static_cast<double>(replica.prefix_queries));
    }
  }
}

class VllmService final : public pb::VllmEngine::CallbackService {
 public:
  explicit VllmService(GrpcShared* shared) : shared_(shared), began_ns_(GrpcShared::NowNs()) {}

 private:
  ::grpc::ServerWriteReactor<pb::GenerateResponse>* Generate(
      Context* context, const pb::GenerateRequest* request) override {
    return StreamCall<pb::GenerateResponse>::Start(
        shared_, context, "VllmEngine.Generate", [request](auto* queue) {
          return PrepareGenerate(request, queue);
        });
  }

  Reactor* Embed(Context* context,
                 const pb::EmbedRequest* request,
                 pb::EmbedResponse* response) override {
    return UnaryCall::Start(shared_, context, "VllmEngine.Embed", PrepareEmbed(request, response));
  }

  Reactor* HealthCheck(Context* context,
                       const pb::HealthCheckRequest* /*request*/,
                       pb::HealthCheckResponse* response) override {
    return AnswerInline(
        shared_,
        context,
        "VllmEngine.HealthCheck",
        [&](const ServerContext&, Fault*) -> Result<> {
          response->set_healthy(shared_->ready());
          response->set_message(shared_->ready() ? "Health" : "not ready");
          return {};
        },
        Access::kOpen);
  }

  Reactor* Abort(Context* context,
                 const pb::AbortRequest* request,
                 pb::AbortResponse* /*response*/) override {
    return AnswerInline(
        shared_,
        context,
        "VllmEngine.Abort",
        [&](const ServerContext&, Fault* fault) -> Result<> {
          if (request->request_ids_size() > kMaxAborts) {
            return FieldError(fault,
                              "request_ids",
                              "request_ids has {} entries; at most {} are allowed",
                              request->request_ids_size(),
                              kMaxAborts);
          }
          for (const std::string& id : request->request_ids()) {
            shared_->running.Abort(id);
          }
          return {};
        },
        Access::kAdmin);
  }

  Reactor* GetModelInfo(Context* context,
                        const pb::GetModelInfoRequest* /*request*/,
                        pb::GetModelInfoResponse* response) override {
    return AnswerInline(
        shared_,
        context,
        "VllmEngine.GetModelInfo",
        [&](const ServerContext& with, Fault*) -> Result<> {
          const spec::ModelSpec& model = with.service.model();
          response->set_model_path(with.model.name());
          response->set_served_model_name(with.model.name());
          response->set_is_generation(true);
          response->set_max_context_length(
              static_cast<std::uint32_t>(with.service.max_model_len()));
          response->set_max_req_input_len(static_cast<std::int32_t>(with.service.max_model_len()) -
                                          1);
          response->set_vocab_size(static_cast<std::uint32_t>(with.model.vocab_size));
          response->add_architectures(model.architecture);
          response->mutable_eos_token_ids()->Assign(model.eos_ids.begin(), model.eos_ids.end());
          response->set_bos_token_id(model.bos_id);
          return {};
        });
  }

  Reactor* GetServerInfo(Context* context,
                         const pb::GetServerInfoRequest* /*request*/,
                         pb::GetServerInfoResponse* response) override {
    return AnswerInline(
        shared_,
        context,
        "VllmEngine.GetServerInfo",
        [&](const ServerContext& with, Fault*) -> Result<> {
          response->set_active_requests(static_cast<std::uint32_t>(shared_->host->open()));
          response->set_uptime_seconds(static_cast<double>(GrpcShared::NowNs() - began_ns_) * 1e-9);
          response->set_server_type("vllm-grpc");  // what routers know the protocol by
          response->set_data_parallel_size(static_cast<std::int32_t>(with.service.stats().size()));
          return {};
        });
  }

  Reactor* GetLoads(Context* context,
                    const pb::GetLoadsRequest* /*request*/,
                    pb::GetLoadsResponse* response) override {
    return AnswerInline(shared_,
                        context,
                        "VllmEngine.GetLoads",
                        [&](const ServerContext& with, Fault*) -> Result<> {
                          SetLoads(with, response);
                          return {};
                        });
  }

  static constexpr int kMaxAborts = 1024;

  GrpcShared* const shared_;
  const std::int64_t began_ns_;
};

}  // namespace

std::unique_ptr<::grpc::Service> MakeVllmService(GrpcShared* shared) {
  return std::make_unique<VllmService>(shared);
}

}  // namespace inferd::api
