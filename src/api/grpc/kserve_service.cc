// SPDX-License-Identifier: Apache-2.0
// inference.GRPCInferenceService: the Open Inference Protocol v2.
#include "api/core/serving_state.h"
#include "api/grpc/infer_proto.h"
#include "api/grpc/infer_stream.h"
#include "api/grpc/services.h"
#include "api/grpc/unary_call.h"
#include "base/error.h"
#include "inferd/version.h"
#include "kserve/grpc_predict_v2.grpc.pb.h"

#include <string>
#include <utility>

namespace inferd::api {
namespace {

namespace pb = inference;
using Context = grpc::CallbackServerContext;
using Reactor = grpc::ServerUnaryReactor;

std::string StateOf(leader::Phase phase) {
  if (phase == leader::Phase::kReady) {
    return "READY";
  }
  const bool comes = phase == leader::Phase::kStarting || phase == leader::Phase::kLoading ||
                     phase == leader::Phase::kRecovering;
  return comes ? "LOADING" : "UNAVAILABLE";
}

void SetMetadata(const ServerContext& context,
                 const std::string& name,
                 pb::ModelMetadataResponse* response) {
  response->set_name(name.empty() ? context.model.name() : name);
  response->add_versions(std::string(kModelVersion));
  response->set_platform("inferd");
  for (const TensorInfo& info : InferInputs()) {
    auto* const input = response->add_inputs();
    input->set_name(std::string(info.name));
    input->set_datatype(std::string(info.datatype));
    input->add_shape(info.optional ? 1 : -1);
  }
  auto* const output = response->add_outputs();
  output->set_name(std::string(kTextOutput));
  output->set_datatype("BYTES");
  output->add_shape(-1);
}

using Service = pb::GRPCInferenceService;
/// The generated CallbackService, but for ModelStreamInfer, which takes bytes.
using Base = Service::WithCallbackMethod_ServerLive<
    Service::WithCallbackMethod_ServerReady<Service::WithCallbackMethod_ModelReady<
        Service::WithCallbackMethod_ServerMetadata<Service::WithCallbackMethod_ModelMetadata<
            Service::WithCallbackMethod_ModelInfer<Service::WithRawCallbackMethod_ModelStreamInfer<
                Service::WithCallbackMethod_RepositoryIndex<
                    Service::WithCallbackMethod_RepositoryModelLoad<
                        Service::WithCallbackMethod_RepositoryModelUnload<
                            Service::Service>>>>>>>>>>;

class KserveService final : public Base {
 public:
  explicit KserveService(GrpcShared* shared) : shared_(shared) {}

 private:
  Reactor* ServerLive(Context* context,
                      const pb::ServerLiveRequest* /*request*/,
                      pb::ServerLiveResponse* response) override {
    return AnswerInline(
        shared_,
        context,
        "ServerLive",
        [&](const ServerContext& with, Fault*) -> Result<> {
          response->set_live(!with.service.stall());
          return {};
        },
        Access::kOpen);
  }

  Reactor* ServerReady(Context* context,
                       const pb::ServerReadyRequest* /*request*/,
                       pb::ServerReadyResponse* response) override {
    return AnswerInline(
        shared_,
        context,
        "ServerReady",
        [&](const ServerContext&, Fault*) -> Result<> {
          response->set_ready(shared_->ready());
          return {};
        },
        Access::kOpen);
  }

  Reactor* ServerMetadata(Context* context,
                          const pb::ServerMetadataRequest* /*request*/,
                          pb::ServerMetadataResponse* response) override {
    return AnswerInline(
        shared_, context, "ServerMetadata", [&](const ServerContext&, Fault*) -> Result<> {
          response->set_name("inferd");
          response->set_version(std::string(kVersion));
          for (const char* const name : {"model_repository", "generate"}) {
            response->add_extensions(name);
          }
          return {};
        });
  }

  Reactor* ModelReady(Context* context,
                      const pb::ModelReadyRequest* request,
                      pb::ModelReadyResponse* response) override {
    return AnswerInline(
        shared_, context, "ModelReady", [&](const ServerContext& with, Fault* fault) -> Result<> {
          INFERD_TRY(CheckModelVersion(with, request->name(), request->version(), fault));
          response->set_ready(shared_->ready());
          return {};
        });
  }

  Reactor* ModelMetadata(Context* context,
                         const pb::ModelMetadataRequest* request,
                         pb::ModelMetadataResponse* response) override {
    return AnswerInline(
        shared_,
        context,
        "ModelMetadata",
        [&](const ServerContext& with, Fault* fault) -> Result<> {
          INFERD_TRY(CheckModelVersion(with, request->name(), request->version(), fault));
          SetMetadata(with, request->name(), response);
          return {};
        });
  }

  Reactor* ModelInfer(Context* context,
                      const pb::ModelInferRequest* request,
                      pb::ModelInferResponse* response) override {
    return UnaryCall::Start(
        shared_,
        context,
        "ModelInfer",
        [request, response](const ServerContext& with, Fault* fault) -> Result<PreparedCall> {
          return PrepareInferCall(with, *request, response, nullptr, fault);
        });
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ModelStreamInfer(
      Context* context) override {
    return StartInferStream(shared_, context);
  }

  Reactor* RepositoryIndex(Context* context,
                           const pb::RepositoryIndexRequest* request,
                           pb::RepositoryIndexResponse* response) override {
    return AnswerInline(
        shared_, context, "RepositoryIndex", [&](const ServerContext& with, Fault*) -> Result<> {
          if (request->ready() && !shared_->ready()) {
            return {};
          }
          for (const std::string& name : with.model.names->All()) {
            auto* const model = response->add_models();
            model->set_name(name);
            model->set_version(std::string(kModelVersion));
            model->set_state(StateOf(with.service.phase()));
          }
          return {};
        });
  }

  Reactor* RepositoryModelLoad(Context* context,
                               const pb::RepositoryModelLoadRequest* request,
                               pb::RepositoryModelLoadResponse* /*response*/) override {
    return AnswerInline(
        shared_,
        context,
        "RepositoryModelLoad",
        [&](const ServerContext& with, Fault* fault) -> Result<> {
          INFERD_TRY(CheckModelVersion(with, request->model_name(), "", fault));
          if (auto error = NotServing(with.service.phase(), with.draining, fault)) {
            return *error;
          }
          return {};  // it is loaded
        },
        Access::kAdmin);
  }

  Reactor* RepositoryModelUnload(Context* context,
                                 const pb::RepositoryModelUnloadRequest* request,
                                 pb::RepositoryModelUnloadResponse* /*response*/) override {
    return AnswerInline(
        shared_,
        context,
        "RepositoryModelUnload",
        [&](const ServerContext& with, Fault* fault) -> Result<> {
          INFERD_TRY(CheckModelVersion(with, request->model_name(), "", fault));
          return Error(Code::kFailedPrecondition,
                       "This server holds one model for as long as it runs; stop the server to "
                       "unload it");
        },
        Access::kAdmin);
  }

  GrpcShared* const shared_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeKserveService(GrpcShared* shared) {
  return std::make_unique<KserveService>(shared);
}

}  // namespace inferd::api
