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
#include <vector>

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
    tenant::ApiKey gateway;
    gateway.name = "gateway";
    gateway.digest = tenant::DigestOf("gateway");
    gateway.gateway = true;
    auto table = tenant::KeyTable::Make({key, admin, gateway});
    ASSERT_TRUE(table.ok());
    gate_ = std::make_unique<tenant::Gate>(
        tenant::GateOptions{.model_name = "m", .model_version = "1", .objectives = {}},
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

TEST_F(GrpcKeysTest, WhoAsksMustBeClear) {
  using Pair = std::pair<const char*, const char*>;
  const auto complete = [&](const std::vector<Pair>& metadata) {
    auto context = With("x-api-key", "gateway");
    for (const auto& [name, value] : metadata) {
      context->AddMetadata(name, value);
    }
    return Complete(std::move(context));
  };
  EXPECT_EQ(complete({{"x-tenant", "a"}}), grpc::StatusCode::OK);
  EXPECT_EQ(service_.last()->tenant, "gateway\na");
  EXPECT_EQ(complete({{"x-inferd-tenant", "a"}, {"x-tenant", "a"}}), grpc::StatusCode::OK);
  for (const std::vector<Pair>& unclear :
       {std::vector<Pair>{{"x-api-key", "secret"}},
        {{"authorization", "Bearer gateway"}, {"authorization", "Bearer secret"}},
        {{"x-tenant", "a"}, {"x-tenant", "a"}},
        {{"x-inferd-weight", "1"}, {"x-inferd-weight", "9"}},
        {{"x-gateway-inference-objective", "a"}, {"x-gateway-inference-objective", "b"}},
        {{"x-inferd-tenant", "a"}, {"x-tenant", "b"}},
        {{"x-inferd-tenant", ""}, {"x-tenant", "b"}},
        {{"x-tenant", "a"}, {"x-gateway-inference-fairness-id", "b"}}}) {
    EXPECT_EQ(complete(unclear), grpc::StatusCode::INVALID_ARGUMENT) << unclear.front().first;
  }
}

TEST_F(GrpcKeysTest, AStreamsPartSaysWhyItIsRefused) {
  service_.Pause(true);
  auto context = With("x-api-key", "secret");
  auto stream = kserve_->ModelStreamInfer(context.get());
  inference::ModelInferRequest request;
  request.set_model_name("test-model");
  auto* const input = request.add_inputs();
  input->set_name("text_input");
  input->set_datatype("BYTES");
  input->add_shape(1);
  input->mutable_contents()->add_bytes_contents("hi");
  request.set_id("first");
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(service_.WaitRunning(1));
  request.set_id("second");
  ASSERT_TRUE(stream->Write(request));
  inference::ModelStreamInferResponse message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_NE(message.error_message(), "");
  EXPECT_EQ(message.infer_response().id(), "second");
  const auto& parameters = message.infer_response().parameters();
  ASSERT_TRUE(parameters.contains("x-inferd-rejected-reason"));
  EXPECT_EQ(parameters.at("x-inferd-rejected-reason").string_param(), "quota");
  ASSERT_TRUE(parameters.contains("retry-after-ms"));
  EXPECT_GT(parameters.at("retry-after-ms").int64_param(), 0);
  service_.Pause(false);
  stream->WritesDone();
  while (stream->Read(&message)) {
  }
  EXPECT_TRUE(stream->Finish().ok());
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

/// A key with an allowance of tokens, on a clock that stands still.
class GrpcTokensTest : public GrpcTest {
 protected:
  // "hi" makes 3 tokens with BOS, and "Hello" with its end 6.
  static constexpr std::int64_t kPrompt = 3, kAnswer = 6;

  void StartWith(std::int64_t tokens_per_minute) {
    tenant::ApiKey key;
    key.name = "one";
    key.digest = tenant::DigestOf("secret");
    key.limits.tokens_per_minute = tokens_per_minute;
    auto table = tenant::KeyTable::Make({key});
    ASSERT_TRUE(table.ok());
    gate_ = std::make_unique<tenant::Gate>(
        tenant::GateOptions{.model_name = "m", .model_version = "1", .objectives = {}},
        *std::move(table),
        nullptr,
        &clock_);
    StartServer({}, gate_.get());
    stub_ = v1::Inference::NewStub(channel_);
  }
  static v1::CompletionRequest Request(std::int64_t max_tokens) {
    v1::CompletionRequest request;
    request.add_prompt("hi");
    request.set_max_tokens(max_tokens);
    return request;
  }
  static std::unique_ptr<grpc::ClientContext> Key() {
    auto context = CallContext();
    context->AddMetadata("x-api-key", "secret");
    return context;
  }
  grpc::StatusCode Complete(std::int64_t max_tokens) {
    v1::CompletionResponse response;
    return stub_->Completion(Key().get(), Request(max_tokens), &response).error_code();
  }

  base::FakeClock clock_;
  std::unique_ptr<tenant::Gate> gate_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(GrpcTokensTest, WhatIsSetAsideAndNotUsedComesBackAtTheEnd) {
  StartWith(100);
  // Each sets more aside than it uses, which is 9; the next may have all but that.
  EXPECT_EQ(Complete(90), grpc::StatusCode::OK);
  EXPECT_EQ(Complete(90), grpc::StatusCode::RESOURCE_EXHAUSTED) << "91 are left, 93 asked for";
  EXPECT_EQ(Complete(88), grpc::StatusCode::OK);
  for (std::int64_t left = 100 - 2 * (kPrompt + kAnswer); left >= kPrompt + kAnswer;
       left -= kPrompt + kAnswer) {
    EXPECT_EQ(Complete(left - kPrompt + 1), grpc::StatusCode::RESOURCE_EXHAUSTED) << left;
    EXPECT_EQ(Complete(left - kPrompt), grpc::StatusCode::OK) << left;
  }
}

TEST_F(GrpcTokensTest, AStreamSettlesTooAlsoOneThatIsLeft) {
  StartWith(100);
  auto context = Key();
  auto reader = stub_->CompletionStream(context.get(), Request(90));
  v1::CompletionResponse piece;
  while (reader->Read(&piece)) {
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(Complete(89), grpc::StatusCode::RESOURCE_EXHAUSTED) << "91 are left";
  EXPECT_EQ(Complete(88), grpc::StatusCode::OK);

  // 82 are left. A stream that is cancelled after its first token has used 4 of them.
  service_.HoldAt(1);
  context = Key();
  reader = stub_->CompletionStream(context.get(), Request(79));
  ASSERT_TRUE(reader->Read(&piece));
  EXPECT_EQ(Complete(1), grpc::StatusCode::RESOURCE_EXHAUSTED) << "all is set aside";
  context->TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(service_.WaitRunning(0));
  service_.HoldAt(-1);
  // The server settles a little later than the client sees the end; this takes 4 more.
  int tries = 0;
  while (Complete(1) != grpc::StatusCode::OK && ++tries < 10'000) {
  }
  EXPECT_EQ(Complete(72), grpc::StatusCode::RESOURCE_EXHAUSTED) << "74 are left";
  EXPECT_EQ(Complete(71), grpc::StatusCode::OK);
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
