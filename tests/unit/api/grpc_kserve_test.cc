// SPDX-License-Identifier: Apache-2.0
#include "grpc_fixture.h"
#include "kserve/grpc_predict_v2.grpc.pb.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace inferd::api {
namespace {

namespace pb = inference;

pb::ModelInferRequest Ask(const std::vector<std::string>& texts) {
  pb::ModelInferRequest request;
  request.set_model_name("test-model");
  auto* const input = request.add_inputs();
  input->set_name("text_input");
  input->set_datatype("BYTES");
  input->add_shape(static_cast<std::int64_t>(texts.size()));
  for (const std::string& text : texts) {
    input->mutable_contents()->add_bytes_contents(text);
  }
  return request;
}

std::string Raw(const std::string& text) {
  return std::string{static_cast<char>(text.size()), 0, 0, 0} + text;
}

class GrpcKserveTest : public GrpcTest {
 protected:
  void SetUp() override {
    StartServer();
    stub_ = pb::GRPCInferenceService::NewStub(channel_);
  }
  grpc::Status Infer(const pb::ModelInferRequest& request, pb::ModelInferResponse* response) {
    return stub_->ModelInfer(CallContext().get(), request, response);
  }
  void ExpectRefused(const pb::ModelInferRequest& request, grpc::StatusCode code) {
    pb::ModelInferResponse response;
    const auto status = Infer(request, &response);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
  }

  std::unique_ptr<pb::GRPCInferenceService::Stub> stub_;
};

TEST_F(GrpcKserveTest, InferAnswersTextsInTheFormOfTheRequest) {
  auto request = Ask({"a", "b"});
  request.set_id("r1");
  (*request.mutable_parameters())["max_tokens"].set_int64_param(3);
  (*request.mutable_parameters())["temperature"].set_double_param(0.5);
  (*request.mutable_parameters())["seed"].set_string_param("7");
  pb::ModelInferResponse response;
  auto status = Infer(request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.id(), "r1");
  EXPECT_EQ(response.model_version(), "1");
  ASSERT_EQ(response.outputs_size(), 1);
  EXPECT_EQ(response.outputs(0).name(), "text_output");
  EXPECT_EQ(response.outputs(0).shape(0), 2);
  EXPECT_EQ(response.outputs(0).contents().bytes_contents(1), "Hel");
  EXPECT_EQ(service_.last()->sampling.temperature, 0.5);
  EXPECT_EQ(service_.last()->sampling.seed, 7U);
  EXPECT_EQ(response.parameters().at("finish_reason").string_param(), "length,length");

  auto raw = Ask({});
  raw.mutable_inputs(0)->clear_shape();
  raw.mutable_inputs(0)->add_shape(1);
  raw.mutable_inputs(0)->add_shape(1);
  raw.add_raw_input_contents(Raw("a"));
  status = Infer(raw, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.raw_output_contents(0), Raw("Hello"));

  raw.mutable_inputs()->Add()->set_name("sampling_parameters");
  raw.mutable_inputs(1)->set_datatype("BYTES");
  raw.mutable_inputs(1)->add_shape(1);
  raw.add_raw_input_contents(Raw(R"({"max_tokens":"2","stop":["e"]})"));
  status = Infer(raw, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.raw_output_contents(0), Raw("H"));

  auto with_input = Ask({"ab"});
  (*with_input.mutable_parameters())["exclude_input_in_output"].set_bool_param(false);
  ASSERT_TRUE(Infer(with_input, &response).ok());
  EXPECT_EQ(response.outputs(0).contents().bytes_contents(0), "abHello");
}

TEST_F(GrpcKserveTest, WhatIsWrongIsRefused) {
  const auto kBad = grpc::StatusCode::INVALID_ARGUMENT;
  ExpectRefused(pb::ModelInferRequest(), kBad);
  auto request = Ask({"a"});
  request.set_model_name("other");
  ExpectRefused(request, grpc::StatusCode::NOT_FOUND);
  request = Ask({"a"});
  request.set_model_version("2");
  ExpectRefused(request, grpc::StatusCode::NOT_FOUND);
  request = Ask({"a"});
  request.mutable_inputs(0)->set_name("prompt");
  ExpectRefused(request, kBad);
  request = Ask({"a"});
  request.mutable_inputs(0)->set_datatype("INT32");
  ExpectRefused(request, kBad);
  request = Ask({"a"});
  request.mutable_inputs(0)->set_shape(0, 2);
  ExpectRefused(request, kBad);
  request.mutable_inputs(0)->set_shape(0, -1);
  ExpectRefused(request, kBad);
  request.mutable_inputs(0)->set_shape(0, std::numeric_limits<std::int64_t>::max());
  ExpectRefused(request, kBad);
  request = Ask({"a"});
  (*request.mutable_parameters())["temperature"].set_double_param(
      std::numeric_limits<double>::quiet_NaN());
  ExpectRefused(request, kBad);
  (*request.mutable_parameters())["temperature"].set_string_param("hot");
  ExpectRefused(request, kBad);
  request = Ask({"\xff\xfe"});
  ExpectRefused(request, kBad);
  request = Ask({});
  request.mutable_inputs(0)->set_shape(0, 1);
  request.add_raw_input_contents(
      std::string("\xff\xff\xff\xff"
                  "a"));
  ExpectRefused(request, kBad);
  request.set_raw_input_contents(0, Raw("a"));
  request.add_raw_input_contents(Raw("b"));
  ExpectRefused(request, kBad);
  pb::ModelInferResponse response;
  EXPECT_TRUE(Infer(Ask({"a"}), &response).ok());
}

TEST_F(GrpcKserveTest, AStreamCarriesManyRequestsAndTheirErrors) {
  auto context = CallContext();
  auto stream = stub_->ModelStreamInfer(context.get());
  for (int i = 0; i < 5; ++i) {
    auto request = Ask({"a"});
    request.set_id(std::to_string(i));
    (*request.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
    if (i == 2) {
      request.set_model_name("other");
    }
    ASSERT_TRUE(stream->Write(request));
  }
  stream->WritesDone();
  std::map<std::string, std::string> texts;
  std::map<std::string, int> finals;
  std::map<std::string, std::string> errors;
  pb::ModelStreamInferResponse message;
  while (stream->Read(&message)) {
    const auto& response = message.infer_response();
    if (!message.error_message().empty()) {
      errors[response.id()] = message.error_message();
    } else if (response.parameters().count("triton_final_response") != 0) {
      ++finals[response.id()];
    } else {
      EXPECT_EQ(finals[response.id()], 0);
      texts[response.id()] += response.outputs(0).contents().bytes_contents(0);
    }
  }
  const auto status = stream->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_TRUE(errors.contains("2"));
  for (const char* const id : {"0", "1", "3", "4"}) {
    EXPECT_EQ(texts[id], "Hello") << id;
    EXPECT_EQ(finals[id], 1) << id;
  }
}

TEST_F(GrpcKserveTest, MoreRequestsThanMayRunAtOnceAreReadLater) {
  auto context = CallContext();
  auto stream = stub_->ModelStreamInfer(context.get());
  constexpr int kRequests = 300;
  std::thread writer([&] {
    for (int i = 0; i < kRequests; ++i) {
      auto request = Ask({"a"});
      request.set_id(std::to_string(i));
      (*request.mutable_parameters())["max_tokens"].set_int64_param(1);
      ASSERT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
  });
  std::map<std::string, std::string> texts;
  pb::ModelStreamInferResponse message;
  while (stream->Read(&message)) {
    ASSERT_TRUE(message.error_message().empty()) << message.error_message();
    texts[message.infer_response().id()] +=
        message.infer_response().outputs(0).contents().bytes_contents(0);
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(texts.size(), static_cast<std::size_t>(kRequests));
  for (const auto& [id, text] : texts) {
    EXPECT_EQ(text, "H") << id;
  }
}

TEST_F(GrpcKserveTest, ServerAndModelsTellOfThemselves) {
  pb::ServerLiveResponse live;
  ASSERT_TRUE(stub_->ServerLive(CallContext().get(), {}, &live).ok());
  EXPECT_TRUE(live.live());
  service_.SetStallMs(400'000);
  ASSERT_TRUE(stub_->ServerLive(CallContext().get(), {}, &live).ok());
  EXPECT_FALSE(live.live());
  service_.SetStallMs(0);
  pb::ServerReadyResponse ready;
  service_.SetPhase(leader::Phase::kLoading);
  ASSERT_TRUE(stub_->ServerReady(CallContext().get(), {}, &ready).ok());
  EXPECT_FALSE(ready.ready());
  service_.SetPhase(leader::Phase::kReady);
  ASSERT_TRUE(stub_->ServerReady(CallContext().get(), {}, &ready).ok());
  EXPECT_TRUE(ready.ready());
  pb::ServerMetadataResponse server;
  ASSERT_TRUE(stub_->ServerMetadata(CallContext().get(), {}, &server).ok());
  EXPECT_EQ(server.name(), "inferd");
  pb::ModelReadyRequest which;
  which.set_name("alias");
  pb::ModelReadyResponse model_ready;
  ASSERT_TRUE(stub_->ModelReady(CallContext().get(), which, &model_ready).ok());
  EXPECT_TRUE(model_ready.ready());
  which.set_name("other");
  EXPECT_EQ(stub_->ModelReady(CallContext().get(), which, &model_ready).error_code(),
            grpc::StatusCode::NOT_FOUND);
  pb::ModelMetadataRequest about;
  about.set_name("test-model");
  pb::ModelMetadataResponse metadata;
  ASSERT_TRUE(stub_->ModelMetadata(CallContext().get(), about, &metadata).ok());
  EXPECT_EQ(metadata.inputs(0).name(), "text_input");
  EXPECT_EQ(metadata.outputs(0).name(), "text_output");
  pb::RepositoryIndexResponse index;
  ASSERT_TRUE(stub_->RepositoryIndex(CallContext().get(), {}, &index).ok());
  ASSERT_EQ(index.models_size(), 2);
  EXPECT_EQ(index.models(0).state(), "READY");
  pb::RepositoryModelLoadRequest load;
  load.set_model_name("test-model");
  pb::RepositoryModelLoadResponse loaded;
  EXPECT_TRUE(stub_->RepositoryModelLoad(CallContext().get(), load, &loaded).ok());
  load.set_model_name("other");
  EXPECT_EQ(stub_->RepositoryModelLoad(CallContext().get(), load, &loaded).error_code(),
            grpc::StatusCode::NOT_FOUND);
  pb::RepositoryModelUnloadRequest unload;
  unload.set_model_name("test-model");
  pb::RepositoryModelUnloadResponse unloaded;
  EXPECT_EQ(stub_->RepositoryModelUnload(CallContext().get(), unload, &unloaded).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace inferd::api
