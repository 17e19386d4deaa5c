// SPDX-License-Identifier: Apache-2.0
#include "grpc_fixture.h"
#include "vllm/vllm_engine.grpc.pb.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace inferd::api {
namespace {

namespace pb = vllm::grpc::engine;
using Ids = std::vector<std::int32_t>;

pb::GenerateRequest Ask(bool stream) {
  pb::GenerateRequest request;
  request.set_request_id("r1");
  for (const std::int32_t id : {kBos, 104, 105}) {
    request.mutable_tokenized()->add_input_ids(static_cast<std::uint32_t>(id));
  }
  request.mutable_sampling_params()->set_max_tokens(100);
  request.set_stream(stream);
  return request;
}

struct Seen {
  ::grpc::Status status;
  std::map<std::uint32_t, Ids> chunks;
  std::vector<float> logprobs;
  std::map<std::uint32_t, pb::GenerateComplete> complete;
};

class GrpcVllmTest : public GrpcTest {
 protected:
  void SetUp() override {
    StartServer();
    stub_ = pb::VllmEngine::NewStub(channel_);
  }
  Seen Generate(const pb::GenerateRequest& request) {
    Seen seen;
    auto context = CallContext();
    auto reader = stub_->Generate(context.get(), request);
    pb::GenerateResponse response;
    while (reader->Read(&response)) {
      if (response.has_chunk()) {
        const auto& chunk = response.chunk();
        EXPECT_FALSE(seen.complete.contains(chunk.index())) << "a chunk after the end";
        Ids& ids = seen.chunks[chunk.index()];
        ids.insert(ids.end(), chunk.token_ids().begin(), chunk.token_ids().end());
        EXPECT_EQ(chunk.completion_tokens(), ids.size());
        for (const float logprob : chunk.output_logprobs().token_logprobs()) {
          seen.logprobs.push_back(logprob);
        }
      } else {
        seen.complete[response.complete().index()] = response.complete();
      }
    }
    seen.status = reader->Finish();
    return seen;
  }

  std::unique_ptr<pb::VllmEngine::Stub> stub_;
};

Ids OutputIds(const pb::GenerateComplete& complete) {
  return {complete.output_ids().begin(), complete.output_ids().end()};
}

TEST_F(GrpcVllmTest, TokensInTokensOutWholeAndStreamedAlike) {
  const Ids hello = WithEos(Bytes("Hello"));
  const Seen whole = Generate(Ask(false));
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  EXPECT_TRUE(whole.chunks.empty());
  ASSERT_EQ(whole.complete.size(), 1U);
  EXPECT_EQ(OutputIds(whole.complete.at(0)), hello);
  EXPECT_EQ(whole.complete.at(0).finish_reason(), "stop");
  EXPECT_EQ(whole.complete.at(0).prompt_tokens(), 3U);
  EXPECT_EQ(whole.complete.at(0).completion_tokens(), 6U);
  EXPECT_EQ(whole.complete.at(0).cached_tokens(), 1U);
  EXPECT_FALSE(whole.complete.at(0).has_output_logprobs());
  EXPECT_EQ(service_.last()->prompt, (Ids{kBos, 104, 105})) << "ids are taken as they are";
  EXPECT_LT(service_.last()->sampling.logprobs, 0) << "logprobs cost; nobody asked for them";

  auto request = Ask(true);
  request.mutable_sampling_params()->set_n(2);
  request.mutable_sampling_params()->set_logprobs(1);
  request.mutable_sampling_params()->set_temperature(0.7F);
  const Seen stream = Generate(request);
  ASSERT_TRUE(stream.status.ok()) << stream.status.error_message();
  EXPECT_EQ(service_.last()->sampling.temperature, 0.7) << "not 0.699999988";
  for (const std::uint32_t choice : {0U, 1U}) {
    EXPECT_EQ(stream.chunks.at(choice), hello);
    EXPECT_EQ(OutputIds(stream.complete.at(choice)), hello);
  }
  EXPECT_EQ(stream.logprobs, std::vector<float>(12, -0.5F));
}

TEST_F(GrpcVllmTest, ScoresOfThePromptComeOnce) {
  for (const bool stream : {false, true}) {
    auto request = Ask(stream);
    request.mutable_sampling_params()->set_prompt_logprobs(2);
    auto context = CallContext();
    auto reader = stub_->Generate(context.get(), request);
    pb::GenerateResponse response;
    std::vector<pb::InputLogProbs> inputs;
    while (reader->Read(&response)) {
      if (response.has_chunk() && response.chunk().has_input_logprobs()) {
        inputs.push_back(response.chunk().input_logprobs());
      } else if (response.has_complete() && response.complete().has_input_logprobs()) {
        inputs.push_back(response.complete().input_logprobs());
      }
    }
    ASSERT_TRUE(reader->Finish().ok());
    ASSERT_EQ(inputs.size(), 1U);
    EXPECT_EQ(Ids(inputs[0].token_ids().begin(), inputs[0].token_ids().end()),
              (Ids{kBos, 104, 105}));
    EXPECT_FALSE(inputs[0].token_logprobs(0).has_value());
    EXPECT_EQ(inputs[0].token_logprobs(1).value(), -0.5F);
    EXPECT_EQ(inputs[0].top_logprobs(1).token_ids_size(), 2);
  }
  auto cut = Ask(false);
  cut.mutable_sampling_params()->set_truncate_prompt_tokens(2);
  ASSERT_TRUE(Generate(cut).status.ok());
  EXPECT_EQ(service_.last()->prompt, (Ids{104, 105}));
}

TEST_F(GrpcVllmTest, StopsAreFoundAndNamed) {
  auto request = Ask(true);
  request.mutable_sampling_params()->add_stop("ll");
  const Seen text = Generate(request);
  ASSERT_TRUE(text.status.ok());
  EXPECT_EQ(text.complete.at(0).matched_stop_str(), "ll");
  EXPECT_EQ(OutputIds(text.complete.at(0)), Bytes("Hell"));
  request = Ask(true);
  request.mutable_sampling_params()->add_stop_token_ids('e');
  const Seen token = Generate(request);
  EXPECT_EQ(token.complete.at(0).matched_token_id(), static_cast<std::uint32_t>('e'));
}

TEST_F(GrpcVllmTest, WithoutMaxTokensAsManyAsFit) {
  auto request = Ask(false);
  request.mutable_sampling_params()->clear_max_tokens();
  ASSERT_TRUE(Generate(request).status.ok());
  EXPECT_EQ(service_.last()->max_tokens, 997);
}

TEST_F(GrpcVllmTest, WhatIsNotSupportedIsRefusedByName) {
  auto request = Ask(false);
  request.mutable_mm_inputs();
  const Seen images = Generate(request);
  EXPECT_EQ(images.status.error_code(), ::grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_NE(images.status.error_message().find("mm_inputs"), std::string::npos);
  request = Ask(false);
  request.set_kv_transfer_params_json("{}");
  EXPECT_EQ(Generate(request).status.error_code(), ::grpc::StatusCode::UNIMPLEMENTED);
  request = Ask(false);
  request.mutable_tokenized()->add_input_ids(kVocab);
  EXPECT_EQ(Generate(request).status.error_code(), ::grpc::StatusCode::INVALID_ARGUMENT);
  request = Ask(false);
  request.mutable_tokenized()->clear_input_ids();
  EXPECT_EQ(Generate(request).status.error_code(), ::grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GrpcVllmTest, EmbedGivesAVector) {
  pb::EmbedRequest request;
  request.mutable_tokenized()->add_input_ids(104);
  pb::EmbedResponse response;
  const auto status = stub_->Embed(CallContext().get(), request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.embedding_dim(), 4U);
  EXPECT_EQ(response.embedding(0), 0.6F);
  EXPECT_EQ(response.prompt_tokens(), 1U);
}

TEST_F(GrpcVllmTest, AbortEndsARequestByItsId) {
  service_.Pause(true);
  auto context = CallContext();
  auto reader = stub_->Generate(context.get(), Ask(true));
  ASSERT_TRUE(service_.WaitRunning(1));
  pb::GetServerInfoResponse info;
  ASSERT_TRUE(stub_->GetServerInfo(CallContext().get(), {}, &info).ok());
  EXPECT_EQ(info.active_requests(), 1U);
  pb::AbortRequest abort;
  abort.add_request_ids("r1");
  pb::AbortResponse aborted;
  ASSERT_TRUE(stub_->Abort(CallContext().get(), abort, &aborted).ok());
  EXPECT_TRUE(service_.WaitRunning(0));
  pb::GenerateResponse ignored;
  while (reader->Read(&ignored)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), ::grpc::StatusCode::CANCELLED);
}

TEST_F(GrpcVllmTest, TheServerTellsOfItself) {
  pb::HealthCheckResponse health;
  ASSERT_TRUE(stub_->HealthCheck(CallContext().get(), {}, &health).ok());
  EXPECT_TRUE(health.healthy());
  pb::GetModelInfoResponse model;
  ASSERT_TRUE(stub_->GetModelInfo(CallContext().get(), {}, &model).ok());
  EXPECT_EQ(model.served_model_name(), "test-model");
  EXPECT_EQ(model.max_context_length(), 1000U);
  EXPECT_TRUE(model.is_generation());
  pb::GetLoadsResponse loads;
  ASSERT_TRUE(stub_->GetLoads(CallContext().get(), {}, &loads).ok());
  ASSERT_EQ(loads.loads_size(), 2);
  EXPECT_EQ(loads.loads(1).token_usage(), 0.25);
}

}  // namespace
}  // namespace inferd::api
