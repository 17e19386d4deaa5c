// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "grpc_fixture.h"
#include "inferd/v1/inference.grpc.pb.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace inferd::api {
namespace {

v1::ChatCompletionRequest Chat(const std::string& text = "hi") {
  v1::ChatCompletionRequest request;
  auto* const message = request.add_messages();
  message->set_role("user");
  message->set_content(text);
  request.set_temperature(0);
  return request;
}

struct Streamed {
  grpc::Status status;
  std::map<int, std::string> texts;
  std::map<int, std::string> finishes;
  std::vector<double> logprobs;
  v1::Usage usage;
  std::string id;
  int messages = 0;
};

class GrpcInferenceTest : public GrpcTest {
 protected:
  void SetUp() override {
    StartServer();
    stub_ = v1::Inference::NewStub(channel_);
  }

  grpc::Status Ask(const v1::ChatCompletionRequest& request,
                   v1::ChatCompletionResponse* response,
                   grpc::ClientContext* context = nullptr) {
    auto own = CallContext();
    return stub_->ChatCompletion(context == nullptr ? own.get() : context, request, response);
  }

  Streamed Stream(const v1::ChatCompletionRequest& request) {
    Streamed seen;
    auto context = CallContext();
    auto reader = stub_->ChatCompletionStream(context.get(), request);
    v1::ChatCompletionChunk chunk;
    while (reader->Read(&chunk)) {
      ++seen.messages;
      EXPECT_TRUE(seen.id.empty() || seen.id == chunk.id());
      seen.id = chunk.id();
      for (const auto& choice : chunk.choices()) {
        EXPECT_TRUE(seen.finishes[choice.index()].empty()) << "something follows the end";
        seen.texts[choice.index()] += choice.delta().content();
        seen.finishes[choice.index()] = choice.finish_reason();
        for (const auto& item : choice.logprobs().content()) {
          seen.logprobs.push_back(item.chosen().logprob());
        }
      }
      if (chunk.has_usage()) {
        seen.usage = chunk.usage();
      }
    }
    seen.status = reader->Finish();
    return seen;
  }

  /// The server answers.
  void Canary() {
    v1::ChatCompletionResponse response;
    const auto status = Ask(Chat(), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.choices(0).message().content(), "Hello");
  }

  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(GrpcInferenceTest, AChatIsAnsweredWholeAndAsAStreamAlike) {
  auto request = Chat();
  request.set_n(2);
  request.set_logprobs(true);
  request.set_top_logprobs(1);
  v1::ChatCompletionResponse whole;
  ASSERT_TRUE(Ask(request, &whole).ok());
  request.mutable_stream_options()->set_include_usage(true);
  const Streamed stream = Stream(request);
  ASSERT_TRUE(stream.status.ok()) << stream.status.error_message();
  ASSERT_EQ(whole.choices_size(), 2);
  EXPECT_EQ(whole.model(), "test-model");
  EXPECT_TRUE(whole.id().starts_with("chatcmpl-"));
  std::vector<double> logprobs;
  for (const auto& choice : whole.choices()) {
    EXPECT_EQ(choice.message().content(), "Hello");
    EXPECT_EQ(choice.message().role(), "assistant");
    EXPECT_EQ(stream.texts.at(choice.index()), choice.message().content());
    EXPECT_EQ(stream.finishes.at(choice.index()), choice.finish_reason());
    for (const auto& item : choice.logprobs().content()) {
      EXPECT_EQ(item.top_logprobs_size(), 1);
      logprobs.push_back(item.chosen().logprob());
    }
  }
  EXPECT_EQ(logprobs.size(), 12U);  // five letters and the end, twice
  EXPECT_EQ(stream.logprobs, logprobs);
  EXPECT_EQ(whole.usage().completion_tokens(), 12);
  EXPECT_EQ(stream.usage.SerializeAsString(), whole.usage().SerializeAsString());
}

TEST_F(GrpcInferenceTest, CompletionsTakeTextsAndIdsAndStreamAlike) {
  v1::CompletionRequest request;
  request.add_prompt("abc");
  request.add_prompt("de");
  request.set_max_tokens(3);
  v1::CompletionResponse whole;
  auto context = CallContext();
  ASSERT_TRUE(stub_->Completion(context.get(), request, &whole).ok());
  ASSERT_EQ(whole.choices_size(), 2);
  EXPECT_EQ(whole.choices(1).text(), "Hel");
  EXPECT_EQ(whole.choices(1).finish_reason(), "length");
  context = CallContext();
  auto reader = stub_->CompletionStream(context.get(), request);
  std::map<int, std::string> texts;
  v1::CompletionResponse piece;
  while (reader->Read(&piece)) {
    texts[piece.choices(0).index()] += piece.choices(0).text();
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, "Hel"}, {1, "Hel"}}));

  v1::CompletionRequest ids;
  auto* const prompt = ids.add_prompt_token_ids();
  prompt->add_ids('x');
  prompt->add_ids('y');
  (*ids.mutable_logit_bias())[65] = -1.5;
  v1::CompletionResponse answer;
  context = CallContext();
  ASSERT_TRUE(stub_->Completion(context.get(), ids, &answer).ok());
  EXPECT_EQ(service_.last()->prompt, (std::vector<std::int32_t>{'x', 'y'}));
  ASSERT_EQ(service_.last()->sampling.logit_bias.size(), 1U);
  EXPECT_EQ(answer.usage().prompt_tokens(), 2);

  ids.add_prompt("both");
  context = CallContext();
  const auto refused = stub_->Completion(context.get(), ids, &answer);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Trailer(*context, "inferd-param"), "prompt");
}

TEST_F(GrpcInferenceTest, IdsAndScoresOfPromptAndAnswer) {
  const std::vector<std::int32_t> hello = WithEos(Bytes("Hello"));
  const auto list = [](const auto& ids) {
    return std::vector<std::int32_t>(ids.begin(), ids.end());
  };
  auto chat = Chat();
  chat.set_return_token_ids(true);
  chat.set_prompt_logprobs(1);
  v1::ChatCompletionResponse whole;
  ASSERT_TRUE(Ask(chat, &whole).ok());
  EXPECT_EQ(list(whole.choices(0).token_ids()), hello);
  EXPECT_EQ(whole.prompt_token_ids(0), kBos);
  ASSERT_EQ(whole.prompt_logprobs().items_size(), whole.prompt_token_ids_size());
  EXPECT_EQ(whole.prompt_logprobs().items(0).tokens_size(), 0);
  const auto& score = whole.prompt_logprobs().items(1).tokens(0);
  EXPECT_EQ(score.token_id(), whole.prompt_token_ids(1));
  EXPECT_EQ(score.rank(), 1);
  EXPECT_EQ(score.logprob(), -0.5);

  v1::CompletionRequest completion;
  completion.add_prompt("hi");
  completion.set_return_token_ids(true);
  completion.mutable_stream_options()->set_include_usage(true);
  completion.mutable_stream_options()->set_continuous_usage_stats(true);
  auto context = CallContext();
  auto reader = stub_->CompletionStream(context.get(), completion);
  v1::CompletionResponse piece;
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> prompt;
  while (reader->Read(&piece)) {
    for (const auto& choice : piece.choices()) {
      ids.insert(ids.end(), choice.token_ids().begin(), choice.token_ids().end());
      prompt.insert(
          prompt.end(), choice.prompt_token_ids().begin(), choice.prompt_token_ids().end());
      EXPECT_TRUE(piece.has_usage() || choice.prompt_token_ids_size() > 0);
    }
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(ids, hello);
  EXPECT_EQ(prompt, (std::vector<std::int32_t>{kBos, 'h', 'i'})) << "once";
}

TEST_F(GrpcInferenceTest, ErrorsHaveTheTablesCodeAndTheParameter) {
  v1::ChatCompletionResponse response;
  const auto expect = [&](const v1::ChatCompletionRequest& request,
                          grpc::StatusCode code,
                          const std::string& param) {
    auto context = CallContext();
    const auto status = Ask(request, &response, context.get());
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_FALSE(status.error_message().empty());
    EXPECT_EQ(Trailer(*context, "inferd-param"), param);
  };
  expect(v1::ChatCompletionRequest(), grpc::StatusCode::INVALID_ARGUMENT, "messages");
  auto request = Chat();
  request.set_temperature(-1);
  expect(request, grpc::StatusCode::INVALID_ARGUMENT, "temperature");
  request.set_temperature(std::numeric_limits<double>::quiet_NaN());
  expect(request, grpc::StatusCode::INVALID_ARGUMENT, "temperature");
  request = Chat();
  request.set_model("other");
  expect(request, grpc::StatusCode::NOT_FOUND, "model");
  request = Chat();
  request.set_max_tokens(100'000);
  expect(request, grpc::StatusCode::INVALID_ARGUMENT, "messages");
  request = Chat();
  request.set_chat_template_kwargs(R"({"a":1},"b":2)");
  expect(request, grpc::StatusCode::INVALID_ARGUMENT, "chat_template_kwargs");
  request = Chat();
  request.add_messages()->set_role("nobody");
  expect(request, grpc::StatusCode::INVALID_ARGUMENT, "messages[1].role");
  service_.FailNextSubmit(ResourceExhausted("the queue is full"));
  expect(Chat(), grpc::StatusCode::RESOURCE_EXHAUSTED, "");
  service_.FailNextSubmit(Internal("/a/path/of/ours"));
  auto context = CallContext();
  const auto inside = Ask(Chat(), &response, context.get());
  EXPECT_EQ(inside.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(inside.error_message().find("/a/path"), std::string::npos);
  service_.SetPhase(leader::Phase::kLoading);
  expect(Chat(), grpc::StatusCode::UNAVAILABLE, "");
  service_.SetPhase(leader::Phase::kReady);
  Canary();
}

TEST_F(GrpcInferenceTest, AFailureWithinAStreamEndsItWithItsStatus) {
  service_.FailAfter(2, Unavailable("a worker died"));
  const Streamed stream = Stream(Chat());
  EXPECT_EQ(stream.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(stream.status.error_message(), "a worker died");
}

TEST_F(GrpcInferenceTest, CancelAndDeadlineFreeTheEngine) {
  service_.Pause(true);
  auto context = CallContext();
  auto reader = stub_->ChatCompletionStream(context.get(), Chat());
  ASSERT_TRUE(service_.WaitRunning(1));
  context->TryCancel();
  EXPECT_TRUE(service_.WaitRunning(0));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);

  auto brief = std::make_unique<grpc::ClientContext>();
  brief->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  v1::ChatCompletionResponse response;
  EXPECT_EQ(Ask(Chat(), &response, brief.get()).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(service_.WaitRunning(0));
  EXPECT_GE(service_.cancels(), 2U);
  service_.Pause(false);
  Canary();
  EXPECT_EQ(metrics_.generations_open.load(), 0);
}

TEST_F(GrpcInferenceTest, AbortEndsACallByItsRequestId) {
  service_.Pause(true);
  auto context = CallContext();
  context->AddMetadata("x-request-id", "mine");
  auto reader = stub_->ChatCompletionStream(context.get(), Chat());
  ASSERT_TRUE(service_.WaitRunning(1));
  v1::AbortRequest request;
  request.add_ids("mine");
  request.add_ids("nobody's");
  v1::AbortResponse response;
  std::unique_ptr<grpc::ClientContext> other;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  do {  // the engine may see a call a moment before its id is known
    other = CallContext();
    ASSERT_TRUE(stub_->Abort(other.get(), request, &response).ok());
  } while (response.aborted_size() == 0 && std::chrono::steady_clock::now() < deadline);
  ASSERT_EQ(response.aborted_size(), 1);
  EXPECT_EQ(response.aborted(0), "mine");
  EXPECT_TRUE(service_.WaitRunning(0));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  other = CallContext();
  ASSERT_TRUE(stub_->Abort(other.get(), request, &response).ok());
  EXPECT_EQ(response.aborted_size(), 0) << "it has ended";
}

TEST_F(GrpcInferenceTest, TokensThereAndBack) {
  v1::TokenizeRequest request;
  request.set_prompt("wo!");
  request.set_return_token_strs(true);
  v1::TokenizeResponse tokens;
  auto context = CallContext();
  ASSERT_TRUE(stub_->Tokenize(context.get(), request, &tokens).ok());
  EXPECT_EQ(tokens.count(), 3);
  EXPECT_EQ(tokens.tokens(0), kBos);
  EXPECT_EQ(tokens.tokens(1), kWord);
  EXPECT_EQ(tokens.token_strs(1), "wo");
  EXPECT_EQ(tokens.max_model_len(), 1000);
  v1::DetokenizeRequest back;
  *back.mutable_tokens() = tokens.tokens();
  back.set_skip_special_tokens(true);
  v1::DetokenizeResponse text;
  context = CallContext();
  ASSERT_TRUE(stub_->Detokenize(context.get(), back, &text).ok());
  EXPECT_EQ(text.prompt(), "wo!");
  back.add_tokens(kVocab);
  context = CallContext();
  EXPECT_EQ(stub_->Detokenize(context.get(), back, &text).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Trailer(*context, "inferd-param"), "tokens[3]");
}

TEST_F(GrpcInferenceTest, EmbedGivesAVectorForEachInput) {
  v1::EmbedRequest request;
  request.add_input("ab");
  request.add_input("c");
  v1::EmbedResponse response;
  auto context = CallContext();
  const auto status = stub_->Embed(context.get(), request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.data_size(), 2);
  const auto& vector = response.data(1).embedding();
  EXPECT_EQ(std::vector<float>(vector.begin(), vector.end()),
            (std::vector<float>{0.6F, 0, -0.8F, 0}));
  EXPECT_EQ(response.data(1).index(), 1);
  EXPECT_EQ(response.usage().prompt_tokens(), 5);
  request.set_dimensions(0);
  context = CallContext();
  EXPECT_EQ(stub_->Embed(context.get(), request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Trailer(*context, "inferd-param"), "dimensions");
}

TEST_F(GrpcInferenceTest, ModelInfoTellsWhatIsServed) {
  v1::ModelInfoResponse info;
  auto context = CallContext();
  ASSERT_TRUE(stub_->ModelInfo(context.get(), {}, &info).ok());
  EXPECT_EQ(info.id(), "test-model");
  EXPECT_EQ(info.names_size(), 2);
  EXPECT_EQ(info.max_model_len(), 1000);
  EXPECT_TRUE(info.chat());
  EXPECT_TRUE(info.ready());
}

}  // namespace
}  // namespace inferd::api
