// SPDX-License-Identifier: Apache-2.0
// Both ports of one server know what runs on either: an abort ends it wherever it came in.
#include "grpc_fixture.h"
#include "inferd/v1/inference.grpc.pb.h"
#include "protocol_fixture.h"
#include "vllm/vllm_engine.grpc.pb.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

namespace inferd::api {
namespace {

class AbortPortsTest : public ProtocolServerTest {
 protected:
  void SetUp() override {
    Start();
    GrpcOptions options;
    options.port = 0;
    options.access_log = false;
    auto started = GrpcServer::Start(
        options, TestModel(), &service_, server_->mutable_metrics(), nullptr, server_->running());
    ASSERT_TRUE(started.ok()) << started.error().message();
    grpc_ = *std::move(started);
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(grpc_->port()),
                                   grpc::InsecureChannelCredentials());
    stub_ = v1::Inference::NewStub(channel_);
    service_.SetScripts({Bytes("abc")});
    service_.Pause(true);
  }
  void TearDown() override {
    stub_.reset();
    channel_.reset();
    grpc_->Stop();
    ProtocolServerTest::TearDown();
  }

  std::unique_ptr<GrpcServer> grpc_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(AbortPortsTest, GrpcEndsAnHttpRequest) {
  for (const bool as_engine : {false, true}) {
    HttpClient client(port_);
    const Json chat = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    Send(&client, "POST", "/v1/chat/completions", chat, "X-Request-Id: mine\r\n");
    ASSERT_TRUE(service_.WaitRunning(1));
    auto context = CallContext();
    if (as_engine) {
      vllm::grpc::engine::AbortRequest request;
      request.add_request_ids("mine");
      vllm::grpc::engine::AbortResponse response;
      const auto engine = vllm::grpc::engine::VllmEngine::NewStub(channel_);
      ASSERT_TRUE(engine->Abort(context.get(), request, &response).ok());
    } else {
      v1::AbortRequest request;
      request.add_ids("mine");
      request.add_ids("nobody's");
      v1::AbortResponse response;
      ASSERT_TRUE(stub_->Abort(context.get(), request, &response).ok());
      ASSERT_EQ(response.aborted_size(), 1);
      EXPECT_EQ(response.aborted(0), "mine");
    }
    const Reply reply = client.Read();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(Json::parse(reply.body)["choices"][0]["finish_reason"], "abort");
    EXPECT_TRUE(service_.WaitRunning(0));
  }
}

TEST_F(AbortPortsTest, HttpEndsAGrpcCall) {
  v1::ChatCompletionRequest request;
  request.add_messages()->set_role("user");
  request.mutable_messages(0)->set_content("hi");
  auto context = CallContext();
  context->AddMetadata("x-request-id", "mine");
  auto reader = stub_->ChatCompletionStream(context.get(), request);
  ASSERT_TRUE(service_.WaitRunning(1));
  EXPECT_EQ(Ask("POST", "/abort", {{"request_id", "mine"}}).body, R"({"aborted":1})");
  EXPECT_TRUE(service_.WaitRunning(0));
  v1::ChatCompletionChunk chunk;
  while (reader->Read(&chunk)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(Ask("POST", "/abort", {{"request_id", "mine"}}).body, R"({"aborted":0})");
}

}  // namespace
}  // namespace inferd::api
