// SPDX-License-Identifier: Apache-2.0
// What holds for every method of the gRPC port: garbage, too much, clients that leave or read
// slowly, health, drain.
#include "grpc_fixture.h"
#include "grpc_raw_call.h"
#include "http_client.h"
#include "inferd/v1/inference.grpc.pb.h"
#include "kserve/grpc_predict_v2.grpc.pb.h"
#include "vllm/vllm_engine.grpc.pb.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace inferd::api {
namespace {

struct Method {
  std::string path;
  bool takes_stream = false;
  bool generates = false;  // asks the model
};

std::vector<Method> AllMethods() {
  std::vector<Method> methods;
  for (const auto* const file : {v1::ChatCompletionRequest::descriptor()->file(),
                                 inference::ModelInferRequest::descriptor()->file(),
                                 vllm::grpc::engine::GenerateRequest::descriptor()->file()}) {
    const auto* const service = file->service(0);
    for (int i = 0; i < service->method_count(); ++i) {
      const auto* const method = service->method(i);
      const std::string name = method->name();
      methods.push_back({"/" + service->full_name() + "/" + name,
                         method->client_streaming(),
                         name.find("Completion") != name.npos || name.find("Infer") != name.npos ||
                             name == "Generate"});
    }
  }
  return methods;
}

/// Requests that each generating method runs forever with a paused engine.
std::string GoodRequest(const std::string& path) {
  if (path.find("ChatCompletion") != path.npos) {
    v1::ChatCompletionRequest request;
    auto* const message = request.add_messages();
    message->set_role("user");
    message->set_content("hi");
    return request.SerializeAsString();
  }
  if (path.find("Completion") != path.npos) {
    v1::CompletionRequest request;
    request.add_prompt("hi");
    return request.SerializeAsString();
  }
  if (path.find("Infer") != path.npos) {
    inference::ModelInferRequest request;
    auto* const input = request.add_inputs();
    input->set_name("text_input");
    input->set_datatype("BYTES");
    input->add_shape(1);
    input->mutable_contents()->add_bytes_contents("hi");
    return request.SerializeAsString();
  }
  vllm::grpc::engine::GenerateRequest request;
  request.mutable_tokenized()->add_input_ids(5);
  request.set_stream(true);
  return request.SerializeAsString();
}

class GrpcServerTest : public GrpcTest {
 protected:
  void Canary() {
    const auto answer = CallRaw(channel_,
                                "/inferd.v1.Inference/ChatCompletion",
                                GoodRequest("/inferd.v1.Inference/ChatCompletion"));
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    v1::ChatCompletionResponse response;
    ASSERT_TRUE(response.ParseFromString(answer.messages.at(0)));
    EXPECT_EQ(response.choices(0).message().content(), "Hello");
  }

  /// grpc.health.v1's Check by hand: 1 is SERVING, 2 is NOT_SERVING; -1 with NOT_FOUND.
  int Health(const std::string& service) {
    std::string request;
    if (!service.empty()) {
      request = std::string("\x0a") + static_cast<char>(service.size()) + service;
    }
    const auto answer = CallRaw(channel_, "/grpc.health.v1.Health/Check", request);
    if (!answer.status.ok()) {
      EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::NOT_FOUND);
      return -1;
    }
    return answer.messages.at(0).at(1);
  }
  bool WaitHealth(const std::string& service, int wanted) {
    return Eventually([&] { return Health(service) == wanted; });
  }
};

TEST_F(GrpcServerTest, GarbageIsRefusedByEveryMethod) {
  StartServer();
  const std::string garbage[] = {
      std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11),
      std::string("\x0a\x7f") + "short",
      std::string(1000, '\x07'),
  };
  for (const Method& method : AllMethods()) {
    for (const std::string& bytes : garbage) {
      const auto answer = CallRaw(channel_, method.path, bytes);
      EXPECT_FALSE(answer.status.ok()) << method.path;
      EXPECT_NE(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << method.path;
    }
    // Nothing at all, and the empty message: an answer, whatever it says.
    const auto empty = CallRaw(channel_, method.path, "");
    EXPECT_NE(empty.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << method.path;
    RawCall silent(channel_, method.path);
    silent.WritesDone();
    std::string ignored;
    while (silent.Read(&ignored)) {
    }
    EXPECT_NE(silent.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << method.path;
  }
  Canary();
  EXPECT_TRUE(Eventually([this] { return metrics_.requests_open.load() == 0; }));
}

TEST_F(GrpcServerTest, WhatThrowsEndsItsOwnCallOnly) {
  StartServer();
  service_.ThrowWhenAsked(true);
  int internal = 0;
  for (const Method& method : AllMethods()) {
    const auto answer =
        CallRaw(channel_, method.path, method.generates ? GoodRequest(method.path) : "");
    EXPECT_NE(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << method.path;
    if (method.generates && !method.takes_stream) {
      EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INTERNAL) << method.path;
    }
    internal += answer.status.error_code() == grpc::StatusCode::INTERNAL ? 1 : 0;
    EXPECT_EQ(answer.status.error_message().find("vector"), std::string::npos)
        << "what it was is for the log only";
  }
  EXPECT_GE(internal, 5);
  service_.ThrowWhenAsked(false);
  Canary();
  EXPECT_TRUE(Eventually([this] { return metrics_.requests_open.load() == 0; }));
}

TEST_F(GrpcServerTest, AMessageBeyondTheLimitIsRefusedByEveryMethod) {
  GrpcOptions options;
  options.max_message_bytes = 64 << 10;
  StartServer(options);
  const std::string big(65 << 10, 'x');
  for (const Method& method : AllMethods()) {
    const auto answer = CallRaw(channel_, method.path, big);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << method.path;
  }
  Canary();
}

TEST_F(GrpcServerTest, AClientThatLeavesFreesTheEngine) {
  StartServer();
  service_.Pause(true);
  for (const Method& method : AllMethods()) {
    if (!method.generates) {
      continue;
    }
    SCOPED_TRACE(method.path);
    RawCall call(channel_, method.path);
    ASSERT_TRUE(call.Write(GoodRequest(method.path)));
    if (!method.takes_stream) {
      call.WritesDone();
    }
    ASSERT_TRUE(service_.WaitRunning(1));
    call.Cancel();
    EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_TRUE(service_.WaitRunning(0));
  }
  for (const Method& method : AllMethods()) {  // at once, wherever the call is by then
    RawCall call(channel_, method.path);
    call.Write(GoodRequest(method.path));
    call.Cancel();
    call.Finish();
  }
  EXPECT_TRUE(service_.WaitRunning(0));
  service_.Pause(false);
  Canary();
}

TEST_F(GrpcServerTest, ASlowReaderIsCutAndBlocksNobody) {
  GrpcOptions options;
  options.hard_backlog_bytes = 20'000;
  StartServer(options);
  service_.SetScripts({Bytes(std::string(64, 'x'))});  // never ends
  // Many choices, so that much text comes, and no reading.
  v1::CompletionRequest request;
  for (int i = 0; i < 64; ++i) {
    request.add_prompt("hi");
  }
  request.set_n(8);
  request.set_max_tokens(990);
  auto slow = NewChannel();
  const auto stub = v1::Inference::NewStub(slow);
  auto context = CallContext();
  auto reader = stub->CompletionStream(context.get(), request);
  EXPECT_TRUE(Eventually([this] { return metrics_.slow_clients_cut.load() == 1; }));
  EXPECT_TRUE(service_.WaitRunning(0));
  v1::CompletionResponse piece;
  while (reader->Read(&piece)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
  service_.SetScripts({WithEos(Bytes("Hello"))});
  Canary();
}

TEST_F(GrpcServerTest, HealthTellsLivenessFromReadiness) {
  service_.SetPhase(leader::Phase::kLoading);
  StartServer();
  EXPECT_EQ(Health("readiness"), 2);
  EXPECT_EQ(Health("liveness"), 1);
  service_.SetPhase(leader::Phase::kReady);
  EXPECT_TRUE(WaitHealth("readiness", 1));
  service_.SetStallMs(400'000);
  EXPECT_TRUE(WaitHealth("liveness", 2));
  EXPECT_EQ(Health("readiness"), 1);
  service_.SetStallMs(0);
  EXPECT_TRUE(WaitHealth("liveness", 1));
}

TEST_F(GrpcServerTest, HealthFollowsReadinessPerService) {
  service_.SetPhase(leader::Phase::kLoading);
  StartServer();
  const std::vector<std::string> names = {
      "", "inferd.v1.Inference", "inference.GRPCInferenceService", "vllm.grpc.engine.VllmEngine"};
  for (const std::string& name : names) {
    EXPECT_EQ(Health(name), 2) << name;
  }
  EXPECT_EQ(Health("nobody"), -1);
  // Watch tells of the change.
  RawCall watch(channel_, "/grpc.health.v1.Health/Watch");
  watch.Write("");
  watch.WritesDone();
  std::string state;
  ASSERT_TRUE(watch.Read(&state));
  EXPECT_EQ(state.at(1), 2);
  service_.SetPhase(leader::Phase::kReady);
  ASSERT_TRUE(watch.Read(&state));
  EXPECT_EQ(state.at(1), 1);
  for (const std::string& name : names) {
    EXPECT_TRUE(WaitHealth(name, 1)) << name;
  }
  server_->BeginDrain();
  ASSERT_TRUE(watch.Read(&state));
  EXPECT_EQ(state.at(1), 2);
  watch.Cancel();
  watch.Finish();
}

TEST_F(GrpcServerTest, WhatLeavesIsUnreadyButStillServes) {
  StartServer();
  server_->BeginLeaving();
  EXPECT_TRUE(WaitHealth("", 2));
  const std::string path = "/inferd.v1.Inference/ChatCompletion";
  EXPECT_TRUE(CallRaw(channel_, path, GoodRequest(path)).status.ok());
}

TEST_F(GrpcServerTest, ADrainFinishesWhatRunsAndRefusesTheRest) {
  StartServer();
  service_.Pause(true);
  const std::string path = "/inferd.v1.Inference/ChatCompletionStream";
  RawCall running(channel_, path);
  running.Write(GoodRequest(path));
  running.WritesDone();
  ASSERT_TRUE(service_.WaitRunning(1));
  EXPECT_EQ(metrics_.requests_open.load(), 1);
  server_->BeginDrain();
  EXPECT_EQ(CallRaw(channel_, path, GoodRequest(path)).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  service_.Pause(false);
  std::string text;
  std::string message;
  while (running.Read(&message)) {
    v1::ChatCompletionChunk chunk;
    ASSERT_TRUE(chunk.ParseFromString(message));
    text += chunk.choices_size() > 0 ? chunk.choices(0).delta().content() : "";
  }
  EXPECT_TRUE(running.Finish().ok());
  EXPECT_EQ(text, "Hello");
}

TEST_F(GrpcServerTest, StopEndsRunningCallsWithAReason) {
  StartServer();
  service_.Pause(true);
  const std::string path = "/inferd.v1.Inference/ChatCompletion";
  RawCall running(channel_, path);
  running.Write(GoodRequest(path));
  running.WritesDone();
  ASSERT_TRUE(service_.WaitRunning(1));
  server_->Stop();
  std::string ignored;
  EXPECT_FALSE(running.Read(&ignored));
  EXPECT_EQ(running.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(GrpcServerTest, APortInUseIsAnErrorThatSaysSo) {
  StartServer();
  GrpcOptions options;
  options.port = server_->port();
  const auto second = GrpcServer::Start(options, TestModel(), &service_, &metrics_);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message().find("--grpc-port"), std::string::npos);
}

}  // namespace
}  // namespace inferd::api
