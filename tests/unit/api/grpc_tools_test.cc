// SPDX-License-Identifier: Apache-2.0
// Tools, output formats and reasoning over inferd.v1: every dialect streamed and whole, and what
// reaches template and engine.
#include "grpc_fixture.h"
#include "inferd/v1/inference.grpc.pb.h"
#include "text/dialect_parser.h"
#include "unit/text/dialect_samples.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

struct Said {
  std::string content;
  std::string thought;
  std::vector<text::ExpectedCall> calls;
  std::string finish;
};

class GrpcToolsTest : public GrpcTest {
 protected:
  void StartWith(const std::string& calls, const std::string& reasoning) {
    auto model = std::make_shared<ServedModel>(*TestModel());
    const auto dialect = text::DialectTable::Load("")->Select(
        "", calls.empty() ? "none" : calls, reasoning.empty() ? "none" : reasoning);
    ASSERT_TRUE(dialect.ok()) << dialect.error().message();
    model->dialect = *dialect;
    model->marker_tokens = text::MarkerTokens(*model->tokenizer, model->dialect);
    auto compiled = text::ChatTemplate::Compile(
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.tool_call_id }}"
        "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }} "
        "{{ c.function.arguments | tojson }}]{% endfor %};{% endfor %}"
        "{{ tools | tojson if show_tools }}",
        {.bos = "<s>", .eos = "</s>", .pad = std::nullopt, .unk = std::nullopt});
    ASSERT_TRUE(compiled.ok());
    model->chat_template = *std::move(compiled);
    stub_.reset();
    channel_.reset();
    if (server_ != nullptr) {
      server_->Stop();
    }
    StartServer({}, nullptr, std::move(model));
    stub_ = v1::Inference::NewStub(channel_);
  }

  static v1::ChatCompletionRequest Asked() {
    v1::ChatCompletionRequest request;
    auto* const message = request.add_messages();
    message->set_role("user");
    message->set_content("hi");
    const std::string object = R"({"type":"object","properties":)";
    const std::pair<const char*, std::string> kTools[] = {
        {"get_weather", object + R"({"city":{"type":"string"},"days":{"type":"integer"},
                      "where":{"type":"object"},"list":{"type":"array"}}})"},
        {"run", object + R"({"code":{"type":"string"},"exact":{"type":"boolean"},
                      "maybe":{"anyOf":[{"type":"string"},{"type":"null"}]},"any":{}}})"},
        {"ping", object + "{}}"}};
    for (const auto& [name, parameters] : kTools) {
      auto* const tool = request.add_tools();
      tool->set_type("function");
      tool->mutable_function()->set_name(name);
      tool->mutable_function()->set_parameters(parameters);
    }
    return request;
  }

  Said Whole(const v1::ChatCompletionRequest& request) {
    auto context = CallContext();
    v1::ChatCompletionResponse response;
    const auto status = stub_->ChatCompletion(context.get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    Said said;
    if (!status.ok()) {
      return said;
    }
    const auto& message = response.choices(0).message();
    said = {
        message.content(), message.reasoning_content(), {}, response.choices(0).finish_reason()};
    for (const auto& call : message.tool_calls()) {
      EXPECT_EQ(call.type(), "function");
      EXPECT_FALSE(call.id().empty());
      said.calls.push_back({call.function().name(), call.function().arguments()});
    }
    return said;
  }

  Said Streamed(const v1::ChatCompletionRequest& request) {
    auto context = CallContext();
    auto reader = stub_->ChatCompletionStream(context.get(), request);
    v1::ChatCompletionChunk chunk;
    Said said;
    while (reader->Read(&chunk)) {
      for (const auto& choice : chunk.choices()) {
        said.content += choice.delta().content();
        said.thought += choice.delta().reasoning_content();
        said.finish += choice.finish_reason();
        for (const auto& call : choice.delta().tool_calls()) {
          if (!call.id().empty()) {
            EXPECT_EQ(call.index(), said.calls.size());
            said.calls.push_back({call.function().name(), ""});
          }
          EXPECT_EQ(call.index() + 1U, said.calls.size());
          if (!said.calls.empty()) {
            said.calls.back().arguments += call.function().arguments();
          }
        }
      }
    }
    const auto status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return said;
  }

  std::string Refused(const v1::ChatCompletionRequest& request) {
    auto context = CallContext();
    v1::ChatCompletionResponse response;
    const auto status = stub_->ChatCompletion(context.get(), request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    return Trailer(*context, "inferd-param");
  }

  std::string Prompt() const { return ByteTokenizer()->Decode(service_.last()->prompt, false); }

  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(GrpcToolsTest, EveryDialectStreamsWhatItAnswersWhole) {
  for (const text::Sample& sample : text::Samples()) {
    if (!sample.prompt.empty()) {
      continue;  // the template of this test has no place for it
    }
    SCOPED_TRACE(sample.calls + ": " + sample.reply);
    StartWith(sample.calls, sample.reasoning);
    service_.SetScripts({WithEos(Bytes(sample.reply))});
    const Said whole = Whole(Asked());
    EXPECT_EQ(whole.content, sample.content);
    EXPECT_EQ(whole.thought, sample.thought);
    EXPECT_EQ(whole.finish, sample.expected.empty() ? "stop" : "tool_calls");
    ASSERT_EQ(whole.calls.size(), sample.expected.size());
    for (std::size_t i = 0; i < whole.calls.size(); ++i) {
      EXPECT_EQ(whole.calls[i].name, sample.expected[i].name);
      EXPECT_EQ(nlohmann::json::parse(whole.calls[i].arguments),
                nlohmann::json::parse(sample.expected[i].arguments));
    }
    const Said streamed = Streamed(Asked());
    EXPECT_EQ(streamed.content, whole.content);
    EXPECT_EQ(streamed.thought, whole.thought);
    EXPECT_EQ(streamed.finish, whole.finish);
    EXPECT_EQ(streamed.calls, whole.calls);
    auto silent = Asked();
    silent.set_include_reasoning(false);
    EXPECT_EQ(Whole(silent).thought, "");
  }
}

TEST_F(GrpcToolsTest, ChoicesAndFormatsReachTheEngine) {
  StartWith("hermes", "none");
  service_.SetScripts({WithEos(Bytes("ok"))});
  Whole(Asked());
  EXPECT_EQ(service_.last()->constraint, nullptr);
  const auto may_begin_with = [&](const std::string& text) {
    const auto constraint = service_.last()->constraint;
    if (constraint == nullptr) {
      return true;
    }
    auto clone = constraint->Clone();
    EXPECT_TRUE(clone.ok());
    for (const std::int32_t id : Bytes(text)) {
      if (!(*clone)->Accept(id).ok()) {
        return false;
      }
    }
    return true;
  };
  auto request = Asked();
  request.set_tool_choice("required");
  Whole(request);
  EXPECT_TRUE(may_begin_with("<tool_call>\n{\"name\": \"ping\""));
  EXPECT_FALSE(may_begin_with("ok"));
  request = Asked();
  request.mutable_named_tool_choice()->set_type("function");
  request.mutable_named_tool_choice()->mutable_function()->set_name("run");
  Whole(request);
  EXPECT_TRUE(may_begin_with("<tool_call>\n{\"name\": \"run\""));
  EXPECT_FALSE(may_begin_with("<tool_call>\n{\"name\": \"ping\""));
  request = Asked();
  request.mutable_response_format()->set_type("json_schema");
  request.mutable_response_format()->mutable_json_schema()->set_schema(
      R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})");
  Whole(request);
  EXPECT_TRUE(may_begin_with("{\"a\":1"));
  EXPECT_FALSE(may_begin_with("{\"a\":\"x"));
}

TEST_F(GrpcToolsTest, ARoundOfToolUseReachesTheTemplate) {
  StartWith("hermes", "none");
  service_.SetScripts({WithEos(Bytes("ok"))});
  auto request = Asked();
  auto* const call_message = request.add_messages();
  call_message->set_role("assistant");
  auto* const call = call_message->add_tool_calls();
  call->set_id("call_1");
  call->set_type("function");
  call->mutable_function()->set_name("run");
  call->mutable_function()->set_arguments(R"({"code": "1"})");
  auto* const result = request.add_messages();
  result->set_role("tool");
  result->set_tool_call_id("call_1");
  result->set_content("42");
  Whole(request);
  EXPECT_EQ(Prompt(), "<s>user:hi;assistant:[call_1 run {\"code\": \"1\"}];tool:42call_1;");
  request.set_chat_template_kwargs(R"({"show_tools":true})");
  Whole(request);
  EXPECT_NE(Prompt().find(R"({"type": "function", "function": {"name": "ping", "parameters": )"),
            std::string::npos)
      << Prompt();
}

TEST_F(GrpcToolsTest, RefusesByName) {
  StartWith("hermes", "none");
  auto request = Asked();
  request.mutable_tools(1)->mutable_function()->set_parameters("[]");
  EXPECT_EQ(Refused(request), "tools[1].function.parameters");
  request = Asked();
  request.mutable_tools(1)->set_type("web_search");
  EXPECT_EQ(Refused(request), "tools[1].type");
  request = Asked();
  request.set_tool_choice("always");
  EXPECT_EQ(Refused(request), "tool_choice");
  request = Asked();
  request.mutable_named_tool_choice()->set_type("function");
  request.mutable_named_tool_choice()->mutable_function()->set_name("nobody");
  EXPECT_EQ(Refused(request), "tool_choice.function.name");
}

}  // namespace
}  // namespace inferd::api
