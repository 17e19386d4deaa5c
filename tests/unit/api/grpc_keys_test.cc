// SPDX-License-Identifier: Apache-2.0
// API keys in the metadata of calls.
#include "base/clock.h"
#include "grpc_fixture.h"
#include "inferd/v1/inference.grpc.pb.h"
#include "kserve/grpc_predict_v2.grpc.pb.h"
#include "tenant/gate.h"
#include "vllm/vllm_engine.grpc.pb.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

namespace inferd::api {
namespace {

class GrpcKeysTest : public GrpcTest {
 protected:
  void SetUp() override {
    tenant::ApiKey key;
    key.name = "one";
    key.digest = tenant::DigestOf("secret");
    key.limits.max_concurrency = 1;
    tenant::ApiKey admin;
    admin.name = "admin";
    admin.digest = tenant::DigestOf("admin");
    admin.admin = true;
    auto table = tenant::KeyTable::Make({key, admin});
    ASSERT_TRUE(table.ok());
    gate_ =
        std::make_unique<tenant::Gate>(tenant::GateOptions{.model_name = "m", .model_version = "1"},
                                       *std::move(table),
                                       nullptr,
                                       &base::SteadyClock::Get());
    StartServer({}, gate_.get());
    stub_ = v1::Inference::NewStub(channel_);
    kserve_ = inference::GRPCInferenceService::NewStub(channel_);
    request_.add_prompt("hi");
  }
  static std::unique_ptr<grpc::ClientContext> With(const std::string& name,
                                                   const std::string& value) {
    auto context = CallContext();
    context->AddMetadata(name, value);
    return context;
  }
  grpc::StatusCode Complete(std::unique_ptr<grpc::ClientContext> context) {
    v1::CompletionResponse response;
    return stub_->Completion(context.get(), request_, &response).error_code();
  }

  std::unique_ptr<tenant::Gate> gate_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::unique_ptr<inference::GRPCInferenceService::Stub> kserve_;
  v1::CompletionRequest request_;
};

TEST_F(GrpcKeysTest, AKeyOpensWhatIsClosed) {
  EXPECT_EQ(Complete(CallContext()), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Complete(With("authorization", "Bearer wrong")), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Complete(With("authorization", "secret")), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Complete(With("authorization", "Bearer secret")), grpc::StatusCode::OK);
  EXPECT_EQ(Complete(With("x-api-key", "secret")), grpc::StatusCode::OK);
  v1::ModelInfoResponse info;
  EXPECT_EQ(stub_->ModelInfo(CallContext().get(), {}, &info).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  v1::TokenizeResponse tokens;
  EXPECT_EQ(stub_->Tokenize(CallContext().get(), {}, &tokens).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  auto context = CallContext();
  auto stream = kserve_->ModelStreamInfer(context.get());
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  vllm::grpc::engine::GenerateRequest generate;
  context = CallContext();
  auto reader =
      vllm::grpc::engine::VllmEngine::NewStub(channel_)->Generate(context.get(), generate);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  inference::ServerReadyResponse ready;
  EXPECT_TRUE(kserve_->ServerReady(CallContext().get(), {}, &ready).ok()) << "probes have no key";
}

TEST_F(GrpcKeysTest, ACallHoldsItsPlaceUntilItEnds) {
  service_.Pause(true);
  auto context = With("x-api-key", "secret");
  auto reader = stub_->CompletionStream(context.get(), request_);
  ASSERT_TRUE(service_.WaitRunning(1));
  EXPECT_EQ(Complete(With("x-api-key", "secret")), grpc::StatusCode::RESOURCE_EXHAUSTED);
  service_.Pause(false);
  v1::CompletionResponse piece;
  while (reader->Read(&piece)) {
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(Complete(With("x-api-key", "secret")), grpc::StatusCode::OK) << "at once";
}

TEST_F(GrpcKeysTest, EndingWhatIsOthersNeedsAnAdmin) {
  v1::AbortResponse response;
  EXPECT_EQ(stub_->Abort(With("x-api-key", "secret").get(), {}, &response).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(stub_->Abort(With("x-api-key", "admin").get(), {}, &response).ok());
  vllm::grpc::engine::AbortResponse none;
  const auto engine = vllm::grpc::engine::VllmEngine::NewStub(channel_);
  EXPECT_EQ(engine->Abort(With("x-api-key", "secret").get(), {}, &none).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  inference::RepositoryModelUnloadResponse unloaded;
  EXPECT_EQ(
      kserve_->RepositoryModelUnload(With("x-api-key", "secret").get(), {}, &unloaded).error_code(),
      grpc::StatusCode::PERMISSION_DENIED);
}

}  // namespace
}  // namespace inferd::api
