// SPDX-License-Identifier: Apache-2.0
// inferd.v1.Inference: OpenAI's requests as messages, read by the parsers of the HTTP API.
#include "api/chat/chat_request.h"
#include "api/grpc/proto_format.h"
#include "api/grpc/proto_json.h"
#include "api/grpc/services.h"
#include "api/grpc/stream_call.h"
#include "api/grpc/unary_call.h"
#include "api/openai/completion_request.h"
#include "api/openai/embedding_request.h"
#include "base/error.h"
#include "inferd/v1/inference.grpc.pb.h"
#include "inferd/version.h"

#include <nlohmann/json.hpp>

#include <string>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;
using Context = grpc::CallbackServerContext;

constexpr int kMaxAborts = 1024;

ProtoHead HeadOf(const ServerContext& context, std::string_view prefix, bool logprobs) {
  return {.id = NewId(prefix),
          .model = context.model.name(),
          .created_s = UnixNow(),
          .logprobs = logprobs,
          .tokenizer = context.model.tokenizer};
}

Result<Json> ReadRequest(const ServerContext& context,
                         const google::protobuf::Message& request,
                         bool stream,
                         Fault* fault) {
  INFERD_ASSIGN(Json body, ToJson(request, fault));
  if (stream) {
    body["stream"] = true;
  }
  INFERD_TRY(CheckModel(context, Fields(body, fault)));
  return body;
}

/// The request lives as long as the call does.
PrepareCall PrepareChat(const v1::ChatCompletionRequest* request,
                        v1::ChatCompletionResponse* full,
                        std::deque<v1::ChatCompletionChunk>* stream) {
  return [=](const ServerContext& context, Fault* fault) -> Result<PreparedCall> {
    INFERD_ASSIGN(const Json body, ReadRequest(context, *request, stream != nullptr, fault));
    INFERD_ASSIGN(const ChatRequest chat, ParseChatRequest(context, Fields(body, fault)));
    ProtoHead head = HeadOf(context, "chatcmpl-", chat.params.sampling.logprobs >= 0);
    PreparedCall prepared;
    prepared.ids.push_back(head.id);
    INFERD_ASSIGN(prepared.generation,
                  StartChat(context,
                            chat,
                            std::make_unique<ChatProtoFormat>(std::move(head), full, stream),
                            fault));
    return prepared;
  };
}

PrepareCall PrepareCompletion(const v1::CompletionRequest* request,
                              v1::CompletionResponse* full,
                              std::deque<v1::CompletionResponse>* stream) {
  return [=](const ServerContext& context, Fault* fault) -> Result<PreparedCall> {
    INFERD_ASSIGN(const Json body, ReadRequest(context, *request, stream != nullptr, fault));
    INFERD_ASSIGN(GenerationSpec spec, ParseCompletion(context, Fields(body, fault)));
    ProtoHead head = HeadOf(context, "cmpl-", spec.logprobs);
    PreparedCall prepared;
    prepared.ids.push_back(head.id);
    spec.format = std::make_unique<CompletionProtoFormat>(std::move(head), full, stream);
    prepared.generation = std::make_unique<Generation>(std::move(spec));
    return prepared;
  };
}

PrepareCall PrepareEmbed(const v1::EmbedRequest* request, v1::EmbedResponse* full) {
  return [=](const ServerContext& context, Fault* fault) -> Result<PreparedCall> {
    INFERD_ASSIGN(const Json body, ReadRequest(context, *request, false, fault));
    INFERD_ASSIGN(EmbeddingRequest embedding, ParseEmbedding(context, Fields(body, fault)));
    embedding.spec.format =
        std::make_unique<EmbedProtoFormat>(context.model.name(), embedding.dimensions, full);
    PreparedCall prepared;
    prepared.generation = std::make_unique<Generation>(std::move(embedding.spec));
    return prepared;
  };
}

Result<> AnswerTokenize(const ServerContext& context,
                        const v1::TokenizeRequest& request,
                        v1::TokenizeResponse* response,
                        Fault* fault) {
  INFERD_ASSIGN(const Json body, ReadRequest(context, request, false, fault));
  const Fields fields(body, fault);
  std::vector<std::int32_t> ids;
  if (request.messages_size() > 0) {
    if (request.has_prompt()) {
      return FieldError(fault, "prompt", "prompt and messages exclude each other");
    }
    ChatRequest chat;
    INFERD_TRY(ParseChatPrompt(fields, &chat));
    INFERD_ASSIGN(ids, ChatPrompt(context, chat, fault));
  } else {
    if (!request.has_prompt()) {
      return FieldError(fault, "prompt", "prompt or messages is needed");
    }
    INFERD_ASSIGN(const bool add_special, fields.BoolOr("add_special_tokens", true));
    INFERD_ASSIGN(ids,
                  context.model.tokenizer->Encode(
                      request.prompt(), {.add_special = add_special, .parse_special = true}));
  }
  response->set_count(static_cast<std::int64_t>(ids.size()));
  response->set_max_model_len(context.service.max_model_len());
  response->mutable_tokens()->Assign(ids.begin(), ids.end());
  if (request.return_token_strs()) {
    for (const std::int32_t id : ids) {
      response->add_token_strs(text::MakeTokenText(*context.model.tokenizer, id).token);
    }
  }
  return {};
}

Result<> AnswerDetokenize(const ServerContext& context,
                          const v1::DetokenizeRequest& request,
                          v1::DetokenizeResponse* response,
                          Fault* fault) {
  if (!request.model().empty()) {
    const Json body{{"model", request.model()}};
    INFERD_TRY(CheckModel(context, Fields(body, fault)));
  }
  if (static_cast<std::size_t>(request.tokens_size()) > limits::kDetokenizeIds) {
    return FieldError(fault,
                      "tokens",
                      "tokens has {} ids; at most {} are allowed",
                      request.tokens_size(),
                      limits::kDetokenizeIds);
  }
  for (int i = 0; i < request.tokens_size(); ++i) {
    if (request.tokens(i) < 0 || request.tokens(i) >= context.model.vocab_size) {
      const std::string path = fmt::format("tokens[{}]", i);
      return FieldError(fault,
                        path,
                        "{} is {}; it must be from 0 to {}",
                        path,
                        request.tokens(i),
                        context.model.vocab_size - 1);
    }
  }
  const std::vector<std::int32_t> ids(request.tokens().begin(), request.tokens().end());
  response->set_prompt(context.model.tokenizer->Decode(ids, request.skip_special_tokens()));
  return {};
}

class InferenceServiceImpl final : public v1::Inference::CallbackService {
 public:
  explicit InferenceServiceImpl(GrpcShared* shared) : shared_(shared) {}

 private:
  grpc::ServerUnaryReactor* ChatCompletion(Context* context,
                                           const v1::ChatCompletionRequest* request,
                                           v1::ChatCompletionResponse* response) override {
    return UnaryCall::Start(
        shared_, context, "ChatCompletion", PrepareChat(request, response, nullptr));
  }

  grpc::ServerWriteReactor<v1::ChatCompletionChunk>* ChatCompletionStream(
      Context* context, const v1::ChatCompletionRequest* request) override {
    return StreamCall<v1::ChatCompletionChunk>::Start(
        shared_, context, "ChatCompletionStream", [request](auto* queue) {
          return PrepareChat(request, nullptr, queue);
        });
  }

  grpc::ServerUnaryReactor* Completion(Context* context,
                                       const v1::CompletionRequest* request,
                                       v1::CompletionResponse* response) override {
    return UnaryCall::Start(
        shared_, context, "Completion", PrepareCompletion(request, response, nullptr));
  }

  grpc::ServerWriteReactor<v1::CompletionResponse>* CompletionStream(
      Context* context, const v1::CompletionRequest* request) override {
    return StreamCall<v1::CompletionResponse>::Start(
        shared_, context, "CompletionStream", [request](auto* queue) {
          return PrepareCompletion(request, nullptr, queue);
        });
  }

  grpc::ServerUnaryReactor* Embed(Context* context,
                                  const v1::EmbedRequest* request,
                                  v1::EmbedResponse* response) override {
    return UnaryCall::Start(shared_, context, "Embed", PrepareEmbed(request, response));
  }

  grpc::ServerUnaryReactor* Tokenize(Context* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    return AnswerOnPool(shared_,
                        context,
                        "Tokenize",
                        RequestPool::Lane::kHeavy,
                        [request, response](const ServerContext& with, Fault* fault) {
                          return AnswerTokenize(with, *request, response, fault);
                        });
  }

  grpc::ServerUnaryReactor* Detokenize(Context* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override {
    return AnswerOnPool(shared_,
                        context,
                        "Detokenize",
                        RequestPool::Lane::kHeavy,
                        [request, response](const ServerContext& with, Fault* fault) {
                          return AnswerDetokenize(with, *request, response, fault);
                        });
  }

  grpc::ServerUnaryReactor* Abort(Context* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override {
    return AnswerInline(
        shared_,
        context,
        "Abort",
        [&](const ServerContext&, Fault* fault) -> Result<> {
          if (request->ids_size() > kMaxAborts) {
            return FieldError(fault,
                              "ids",
                              "ids has {} entries; at most {} are allowed",
                              request->ids_size(),
                              kMaxAborts);
          }
          for (const std::string& id : request->ids()) {
            if (shared_->running.Abort(id) > 0) {
              response->add_aborted(id);
            }
          }
          return {};
        },
        Access::kAdmin);
  }

  grpc::ServerUnaryReactor* ModelInfo(Context* context,
                                      const v1::ModelInfoRequest* request,
                                      v1::ModelInfoResponse* response) override {
    return AnswerInline(
        shared_, context, "ModelInfo", [&](const ServerContext& with, Fault* fault) -> Result<> {
          const Json body{{"model", request->model()}};
          INFERD_TRY(CheckModel(with, Fields(body, fault)));
          response->set_id(with.model.name());
          const std::vector<std::string> names = with.model.names->All();
          response->mutable_names()->Assign(names.begin(), names.end());
          response->set_created(with.model.created_s);
          response->set_owned_by("inferd");
          response->set_max_model_len(with.service.max_model_len());
          response->set_vocab_size(with.model.vocab_size);
          response->set_chat(with.model.chat_template != nullptr);
          response->set_ready(shared_->ready());
          response->set_server_version(std::string(kVersion));
          return {};
        });
  }

  GrpcShared* const shared_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInferenceService(GrpcShared* shared) {
  return std::make_unique<InferenceServiceImpl>(shared);
}

}  // namespace inferd::api
