// SPDX-License-Identifier: Apache-2.0
// The handlers of the generating endpoints and of /tokenize, called directly: what they make of
// parameters, and what they refuse, by name.
#include "api/openai/endpoints.h"
#include "fake_service.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace inferd::api {
namespace {

using Json = nlohmann::json;

class HandlersTest : public testing::Test {
 protected:
  struct Answer {
    Result<Outcome> outcome = Outcome(HttpResponse());
    Fault fault;
    int status() const { return outcome.ok() ? 200 : StatusOf(outcome.error().code()).http_status; }
  };

  Answer Call(Handler handler, const std::string& body) {
    HttpRequest request;
    request.body = body;
    ServerContext context{.model = *model_,
                          .service = service_,
                          .metrics = metrics_,
                          .draining = false,
                          .arrived_ns = 1};
    Answer answer;
    answer.outcome = handler(context, request, &answer.fault);
    return answer;
  }
  /// A chat request with extra fields.
  Answer Chat(const std::string& fields) {
    return Call(ChatCompletions,
                R"({"messages":[{"role":"user","content":"hi"}])" +
                    (fields.empty() ? "" : "," + fields) + "}");
  }
  Answer Complete(const std::string& fields) { return Call(Completions, "{" + fields + "}"); }

  /// The one request an accepted call makes.
  leader::GenerateRequest Made(Answer answer) {
    EXPECT_TRUE(answer.outcome.ok())
        << (answer.outcome.ok() ? "" : answer.outcome.error().message());
    if (!answer.outcome.ok()) {
      return {};
    }
    auto requests = std::get<std::unique_ptr<Generation>>(*answer.outcome)->TakeRequests();
    EXPECT_EQ(requests.size(), 1U);
    return requests.empty() ? leader::GenerateRequest() : requests.front();
  }

  std::shared_ptr<const ServedModel> model_ = TestModel();
  FakeInferenceService service_;
  Metrics metrics_;
};

struct Field {
  std::string json;
  std::string param;  // empty: accepted
};

class ChatFields : public HandlersTest, public testing::WithParamInterface<Field> {};

TEST_P(ChatFields, AreAcceptedOrRefusedByName) {
  const Answer answer = Chat(GetParam().json);
  if (GetParam().param.empty()) {
    EXPECT_TRUE(answer.outcome.ok()) << GetParam().json << ": " << answer.outcome.error().message();
    return;
  }
  EXPECT_EQ(answer.status(), 400) << GetParam().json;
  EXPECT_EQ(answer.fault.param, GetParam().param) << GetParam().json;
}

INSTANTIATE_TEST_SUITE_P(
    Numbers,
    ChatFields,
    testing::Values(Field{R"("seed":9223372036854775808)", "seed"},
                    Field{R"("seed":18446744073709551616)", "seed"},
                    Field{R"("seed":-9223372036854775809)", "seed"},
                    Field{R"("seed":1e400)", "seed"},
                    Field{R"("seed":1.0)", ""},
                    Field{R"("seed":1.5)", "seed"},
                    Field{R"("seed":"1")", "seed"},
                    Field{R"("seed":true)", "seed"},
                    Field{R"("seed":-9223372036854775808)", ""},
                    Field{R"("seed":9223372036854775807)", ""},
                    Field{R"("seed":null)", ""},
                    Field{R"("temperature":NaN)", "temperature"},
                    Field{R"("temperature":Infinity)", "temperature"},
                    Field{R"("temperature":-1)", "temperature"},
                    Field{R"("temperature":1e308)", "temperature"},
                    Field{R"("temperature":"1")", "temperature"},
                    Field{R"("temperature":0)", ""},
                    Field{R"("temperature":null)", ""},
                    Field{R"("top_p":0)", "top_p"},
                    Field{R"("top_p":1.0001)", "top_p"},
                    Field{R"("top_p":1)", ""},
                    Field{R"("min_p":1.1)", "min_p"},
                    Field{R"("min_p":-0.1)", "min_p"},
                    Field{R"("top_k":-2)", "top_k"},
                    Field{R"("top_k":-1)", ""},
                    Field{R"("top_k":2147483648)", "top_k"},
                    Field{R"("repetition_penalty":0)", "repetition_penalty"},
                    Field{R"("presence_penalty":2.1)", "presence_penalty"},
                    Field{R"("frequency_penalty":-2.1)", "frequency_penalty"},
                    Field{R"("n":0)", "n"},
                    Field{R"("n":129)", "n"},
                    Field{R"("n":1000000000000)", "n"},
                    Field{R"("n":128)", ""},
                    Field{R"("n":1.0)", ""},
                    Field{R"("max_tokens":0)", "max_tokens"},
                    Field{R"("max_tokens":-1)", "max_tokens"},
                    Field{R"("max_tokens":1.5)", "max_tokens"},
                    Field{R"("max_tokens":"5")", "max_tokens"},
                    Field{R"("max_tokens":null)", ""},
                    Field{R"("max_tokens":991)", "messages"},
                    Field{R"("max_tokens":990)", ""},
                    Field{R"("max_completion_tokens":0)", "max_completion_tokens"},
                    Field{R"("min_tokens":-1)", "min_tokens"},
                    Field{R"("top_logprobs":3)", "top_logprobs"},
                    Field{R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
                    Field{R"("logprobs":true,"top_logprobs":20)", ""},
                    Field{R"("logprobs":1)", "logprobs"},
                    Field{R"("priority":2147483648)", "priority"},
                    Field{R"("priority":-5)", ""}));

INSTANTIATE_TEST_SUITE_P(
    Shapes,
    ChatFields,
    testing::Values(
        Field{R"("logit_bias":{"5":1.5,"7":-100})", ""},
        Field{R"("logit_bias":{"261":1})", "logit_bias.261"},
        Field{R"("logit_bias":{"-1":1})", "logit_bias.-1"},
        Field{R"("logit_bias":{"a":1})", "logit_bias.a"},
        Field{R"("logit_bias":{"5":101})", "logit_bias.5"},
        Field{R"("logit_bias":{"5":"1"})", "logit_bias.5"},
        Field{R"("logit_bias":[1])", "logit_bias"},
        Field{R"("stop":"x")", ""},
        Field{R"("stop":["a","b"])", ""},
        Field{R"("stop":[])", ""},
        Field{R"("stop":null)", ""},
        Field{R"("stop":"")", "stop"},
        Field{R"("stop":["a",""])", "stop[1]"},
        Field{R"("stop":["a",3])", "stop[1]"},
        Field{R"("stop":3)", "stop"},
        Field{
            R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])",
            "stop"},
        Field{"\"stop\":\"" + std::string(257, 'x') + "\"", "stop"},
        Field{"\"stop\":\"" + std::string(256, 'x') + "\"", ""},
        Field{R"("stop_token_ids":[1,2.0])", ""},
        Field{R"("stop_token_ids":[261])", "stop_token_ids[0]"},
        Field{R"("stop_token_ids":[1,-1])", "stop_token_ids[1]"},
        Field{R"("stop_token_ids":5)", "stop_token_ids"},
        Field{R"("stream":"yes")", "stream"},
        Field{R"("stream_options":{})", "stream_options"},
        Field{R"("stream":true,"stream_options":{"include_usage":1})",
              "stream_options.include_usage"},
        Field{R"("stream":true,"stream_options":null)", ""},
        Field{R"("user":"u")", ""},
        Field{R"("user":5)", "user"},
        Field{R"("cache_salt":"")", "cache_salt"},
        Field{R"("cache_salt":"s")", ""},
        Field{R"("ignore_eos":1)", "ignore_eos"},
        Field{R"("a_field_nobody_knows":{"x":[1]})", ""},
        Field{R"("echo":true)", "echo"},
        Field{R"("chat_template_kwargs":[1])", "chat_template_kwargs"},
        Field{R"("chat_template_kwargs":{"messages":[]})", "messages"},
        Field{R"("continue_final_message":true,"add_generation_prompt":true)",
              "continue_final_message"}));

INSTANTIATE_TEST_SUITE_P(
    NotYet,
    ChatFields,
    testing::Values(Field{R"("response_format":{"type":"text"})", ""},
                    Field{R"("response_format":null)", ""},
                    Field{R"("tools":[{"type":"function","function":{"name":"f"}}])", "tools"},
                    Field{R"("tools":[])", ""},
                    Field{R"("tools":[],"tool_choice":"none")", ""},
                    Field{R"("tool_choice":"auto")", ""},
                    Field{R"("tool_choice":"required")", "tool_choice"},
                    Field{R"("tool_choice":{"type":"function","function":{"name":"f"}})",
                          "tool_choice"},
                    Field{R"("functions":[{"name":"f"}])", "functions"},
                    Field{R"("mirostat":2)", "mirostat"},
                    Field{R"("mirostat":0)", ""},
                    Field{R"("best_of":2)", "best_of"},
                    Field{R"("best_of":1)", ""},
                    Field{R"("modalities":["text","audio"])", "modalities"},
                    Field{R"("modalities":["text"])", ""},
                    Field{R"("store":true)", "store"},
                    Field{R"("store":false)", ""},
                    Field{R"("suffix":"x")", "suffix"},
                    Field{R"("suffix":"")", ""},
                    Field{R"("use_beam_search":true)", "use_beam_search"},
                    Field{R"("chat_template":"{{ messages }}")", "chat_template"},
                    Field{R"("parallel_tool_calls":true)", ""}));

const std::string kSchema = R"({"type":"object","properties":{"a":{"enum":["x"]}}})";

INSTANTIATE_TEST_SUITE_P(
    StructuredOutput,
    ChatFields,
    testing::Values(
        Field{R"("response_format":{"type":"json_object"})", ""},
        Field{R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,)"
              R"("schema":)" +
                  kSchema + "}}",
              ""},
        Field{R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})",
              "response_format.json_schema.schema"},
        Field{R"("response_format":{"type":"json_schema","json_schema":{"schema":{"not":{}}}})",
              "response_format.json_schema.schema"},
        Field{R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
        Field{R"("response_format":{"type":"xml"})", "response_format.type"},
        Field{R"("response_format":"json")", "response_format"},
        Field{R"("guided_json":)" + kSchema, ""},
        Field{R"("guided_json":"{\"type\":\"object\"}")", ""},
        Field{R"("guided_json":[1])", "guided_json"},
        Field{R"("guided_regex":"a+")", ""},
        Field{R"("guided_regex":"(a")", "guided_regex"},
        Field{R"("guided_regex":null)", ""},
        Field{R"("guided_choice":["a","b"])", ""},
        Field{R"("guided_choice":[])", "guided_choice"},
        Field{R"("guided_grammar":"start: \"a\"")", ""},
        Field{R"("guided_grammar":"root ::= \"a\"")", ""},
        Field{R"("guided_grammar":5)", "guided_grammar"},
        Field{R"("structured_outputs":{"choice":["a"]})", ""},
        Field{R"("structured_outputs":{"json":{"$ref":"http://x/y"}})", "structured_outputs.json"},
        Field{R"("structured_outputs":{"json_object":true})", ""},
        Field{R"("structured_outputs":{"regex":"a","choice":["a"]})", "structured_outputs.choice"},
        Field{R"("structured_outputs":{"regex":"a","whitespace_pattern":" "})",
              "structured_outputs.whitespace_pattern"},
        Field{R"("structured_outputs":[])", "structured_outputs"},
        Field{R"("guided_regex":"a","response_format":{"type":"json_object"})", "guided_regex"},
        Field{R"("guided_regex":"a","response_format":{"type":"text"})", ""},
        Field{R"("structured_outputs":{"structural_tag":{"structures":[{"begin":"<a>","schema":{},)"
              R"("end":"</a>"}],"triggers":["<a"]}})",
              ""},
        Field{R"("allowed_token_ids":[1,5])", ""},
        Field{R"("allowed_token_ids":[])", "allowed_token_ids"},
        Field{R"("allowed_token_ids":[261])", "allowed_token_ids[0]"},
        Field{R"("allowed_token_ids":[1],"guided_regex":"a")", ""},
        Field{R"("bad_words":["a","b c"])", ""},
        Field{R"("bad_words":[])", ""},
        Field{R"("bad_words":["a",""])", "bad_words[1]"},
        Field{R"("bad_words":"a")", "bad_words"}));

struct Messages {
  std::string json;
  std::string param;   // empty: accepted
  std::string prompt;  // of an accepted one
};

class ChatMessages : public HandlersTest, public testing::WithParamInterface<Messages> {};

TEST_P(ChatMessages, MakeThePromptOrAreRefusedByPath) {
  Answer answer = Call(ChatCompletions, R"({"messages":)" + GetParam().json + "}");
  EXPECT_EQ(answer.fault.param, GetParam().param) << GetParam().json;
  if (!GetParam().param.empty()) {
    EXPECT_EQ(answer.status(), 400);
    return;
  }
  const auto request = Made(std::move(answer));
  EXPECT_EQ(model_->tokenizer->Decode(request.prompt, false), GetParam().prompt);
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    ChatMessages,
    testing::Values(
        Messages{R"([{"role":"user","content":"hi"}])", "", "<s><|user|>user:hi<|assistant|>"},
        Messages{
            R"([{"role":"developer","content":"d"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])",
            "",
            "<s><|user|>system:d<|user|>user:a\nb<|assistant|>"},
        Messages{
            R"([{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":[{"type":"text","text":"r"}]}])",
            "",
            "<s><|user|>assistant:<|user|>tool:r<|assistant|>"},
        Messages{
            R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]}])",
            "",
            "<s><|user|>assistant:<|assistant|>"},
        Messages{R"([{"role":"assistant","content":[],"tool_calls":[{"function":{"name":"f"}}]}])",
                 "",
                 "<s><|user|>assistant:<|assistant|>"},
        Messages{R"([{"role":"user","content":null}])", "messages[0].content", ""},
        Messages{R"([{"role":"user"}])", "messages[0].content", ""},
        Messages{R"([{"role":"assistant","content":null}])", "messages[0].content", ""},
        Messages{R"([{"role":"user","content":5}])", "messages[0].content", ""},
        Messages{
            R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"http://x/"}}]}])",
            "messages[0].content[1].type",
            ""},
        Messages{R"([{"role":"system","content":[{"type":"input_audio","input_audio":{}}]}])",
                 "messages[0].content[0].type",
                 ""},
        Messages{R"([{"role":"tool","content":[{"type":"whatever"}]}])",
                 "messages[0].content[0].type",
                 ""},
        Messages{
            R"([{"role":"user","content":[{"text":"a"}]}])", "messages[0].content[0].type", ""},
        Messages{R"([{"role":"user","content":["a"]}])", "messages[0].content[0]", ""},
        Messages{
            R"([{"role":"assistant","content":"x","tool_calls":[{"function":{"name":"f","arguments":5}}]}])",
            "messages[0].tool_calls[0].function.arguments",
            ""},
        Messages{R"([{"role":"narrator","content":"x"}])", "messages[0].role", ""},
        Messages{R"([{"content":"x"}])", "messages[0].role", ""},
        Messages{R"(["hi"])", "messages[0]", ""},
        Messages{"[]", "messages", ""},
        Messages{"\"hi\"", "messages", ""},
        Messages{"null", "messages", ""},
        Messages{R"([{"role":"user","content":"raise"}])", "messages", ""}));

TEST_F(HandlersTest, TheTemplatesOwnRefusalIsTold) {
  const Answer answer =
      Call(ChatCompletions, R"({"messages":[{"role":"user","content":"raise"}]})");
  ASSERT_FALSE(answer.outcome.ok());
  EXPECT_NE(answer.outcome.error().message().find("no raising here"), std::string::npos);
}

TEST_F(HandlersTest, TemplateVariablesReachTheTemplate) {
  const auto request = Made(Chat(R"("chat_template_kwargs":{"greeting":"Ho"})"));
  EXPECT_EQ(model_->tokenizer->Decode(request.prompt, false), "<s><|user|>user:hi<|assistant|>Ho");
  const auto plain = Made(Chat(R"("add_generation_prompt":false)"));
  EXPECT_EQ(model_->tokenizer->Decode(plain.prompt, false), "<s><|user|>user:hi");
}

TEST_F(HandlersTest, ARequestBringsItsTemplateOnlyWhereThatIsTrusted) {
  const std::string fields = R"("chat_template":"{{ messages[0].content }}!")";
  const Answer refused = Chat(fields);
  EXPECT_EQ(refused.status(), 400);
  EXPECT_EQ(refused.fault.param, "chat_template");
  auto trusting = std::make_shared<ServedModel>(*model_);
  trusting->trust_request_chat_template = true;
  model_ = trusting;
  EXPECT_EQ(model_->tokenizer->Decode(Made(Chat(fields)).prompt, true), "hi!");
  const Answer broken = Chat(R"("chat_template":"{{ messages")");
  EXPECT_EQ(broken.status(), 400);
  EXPECT_EQ(broken.fault.param, "chat_template");
}

TEST_F(HandlersTest, AFinalMessageIsContinued) {
  const auto request = Made(Call(
      ChatCompletions,
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"Sure, "}],"continue_final_message":true})"));
  EXPECT_EQ(model_->tokenizer->Decode(request.prompt, false),
            "<s><|user|>user:a<|user|>assistant:Sure, ");
}

TEST_F(HandlersTest, SamplingGoesThrough) {
  const auto request =
      Made(Chat(R"("temperature":0.5,"top_p":0.9,"min_p":0.1,"top_k":7,"repetition_penalty":1.1,
      "presence_penalty":0.2,"frequency_penalty":0.3,"seed":-5,"logit_bias":{"3":-1},"logprobs":true,"top_logprobs":2,
      "n":3,"max_tokens":9,"min_tokens":4,"ignore_eos":true,"stop_token_ids":[65],"priority":-2,"cache_salt":"x")"));
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.9);
  EXPECT_EQ(request.sampling.min_p, 0.1);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.1);
  EXPECT_EQ(request.sampling.presence_penalty, 0.2);
  EXPECT_EQ(request.sampling.frequency_penalty, 0.3);
  EXPECT_EQ(request.sampling.seed, static_cast<std::uint64_t>(-5));
  ASSERT_EQ(request.sampling.logit_bias.size(), 1U);
  EXPECT_EQ(request.sampling.logit_bias[0], (std::pair<std::int32_t, float>(3, -1.0F)));
  EXPECT_EQ(request.sampling.logprobs, 2);
  EXPECT_EQ(request.sampling.prompt_logprobs, -1);
  EXPECT_EQ(request.n, 3);
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.min_tokens, 4);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.stop_token_ids, std::vector<std::int32_t>{65});
  EXPECT_EQ(request.priority, -2);
  EXPECT_EQ(request.cache_salt, "x");
}

TEST_F(HandlersTest, RequestBeatsModelBeatsBuiltIn) {
  auto model = std::make_shared<ServedModel>(*model_);
  EXPECT_EQ(Made(Chat("")).sampling.temperature, 1.0);
  model->defaults = {.temperature = 0.7,
                     .top_p = 0.8,
                     .min_p = std::nullopt,
                     .top_k = 20,
                     .repetition_penalty = 1.05};
  model_ = model;
  const auto from_model = Made(Chat(R"("temperature":null)"));
  EXPECT_EQ(from_model.sampling.temperature, 0.7);
  EXPECT_EQ(from_model.sampling.top_p, 0.8);
  EXPECT_EQ(from_model.sampling.top_k, 20);
  EXPECT_EQ(from_model.sampling.repetition_penalty, 1.05);
  const auto greedy = Made(Chat(R"("temperature":0,"top_k":-1)"));
  EXPECT_EQ(greedy.sampling.temperature, 0.0);
  EXPECT_EQ(greedy.sampling.top_p, 0.8);
  EXPECT_EQ(greedy.sampling.top_k, 0);
}

TEST_F(HandlersTest, MaxTokensDefaults) {
  const auto chat = Made(Chat(""));
  EXPECT_EQ(chat.max_tokens, 1000 - static_cast<std::int32_t>(chat.prompt.size()));
  EXPECT_EQ(Made(Complete(R"("prompt":"a")")).max_tokens, 16);
  EXPECT_EQ(Made(Chat(R"("max_tokens":5,"max_completion_tokens":6)")).max_tokens, 6);
  EXPECT_EQ(Made(Chat(R"("max_tokens":5,"min_tokens":50)")).min_tokens, 5);
}

TEST_F(HandlersTest, TooLongIsSaidWithTheNumbers) {
  const Answer answer = Complete(R"("prompt":")" + std::string(1200, 'x') + "\"");
  ASSERT_FALSE(answer.outcome.ok());
  EXPECT_EQ(answer.fault.code, "context_length_exceeded");
  EXPECT_EQ(answer.fault.param, "prompt");
  EXPECT_NE(answer.outcome.error().message().find("1201 tokens"), std::string::npos);
  EXPECT_NE(answer.outcome.error().message().find("1000"), std::string::npos);
}

TEST_F(HandlersTest, WhatCannotFitIsNotTokenised) {
  auto model = std::make_shared<ServedModel>(*model_);
  model->longest_token_bytes = 4;
  model_ = model;
  EXPECT_EQ(Complete(R"("prompt":")" + std::string(990, 'x') + R"(","max_tokens":1)").status(),
            200);
  const Answer answer = Complete(R"("prompt":")" + std::string(4004, 'x') + "\"");
  ASSERT_FALSE(answer.outcome.ok());
  EXPECT_EQ(answer.fault.code, "context_length_exceeded");
  EXPECT_NE(answer.outcome.error().message().find("4004 bytes"), std::string::npos);
}

TEST_F(HandlersTest, BosComesOnceWithTextAndNeverWithIds) {
  EXPECT_EQ(Made(Complete(R"("prompt":"ab")")).prompt, (std::vector<std::int32_t>{kBos, 'a', 'b'}));
  EXPECT_EQ(Made(Complete(R"("prompt":"<s>ab")")).prompt,
            (std::vector<std::int32_t>{kBos, 'a', 'b'}));
  EXPECT_EQ(Made(Complete(R"("prompt":[97,98])")).prompt, (std::vector<std::int32_t>{'a', 'b'}));
  EXPECT_EQ(Made(Complete(R"("prompt":[256,256])")).prompt,
            (std::vector<std::int32_t>{kBos, kBos}));
  EXPECT_EQ(Made(Complete(R"("prompt":"")")).prompt, (std::vector<std::int32_t>{kBos}));
  EXPECT_EQ(Made(Complete(R"("prompt":"ab","add_special_tokens":false)")).prompt,
            (std::vector<std::int32_t>{'a', 'b'}));
  const auto chat = Made(Chat(""));
  EXPECT_EQ(std::count(chat.prompt.begin(), chat.prompt.end(), kBos), 1);
}

class PromptShapes : public HandlersTest, public testing::WithParamInterface<Field> {};

TEST_P(PromptShapes, AreAcceptedOrRefusedByPath) {
  const Answer answer = Complete(GetParam().json);
  EXPECT_EQ(answer.status(), GetParam().param.empty() ? 200 : 400) << GetParam().json;
  EXPECT_EQ(answer.fault.param, GetParam().param) << GetParam().json;
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    PromptShapes,
    testing::Values(Field{R"("prompt":["a","b"])", ""},
                    Field{R"("prompt":[[1,2],[3]])", ""},
                    Field{R"("prompt":[])", "prompt"},
                    Field{R"("prompt":[[]])", "prompt[0]"},
                    Field{R"("prompt":[[1],[]])", "prompt[1]"},
                    Field{R"("prompt":["a",[1]])", "prompt[1]"},
                    Field{R"("prompt":[1,"a"])", "prompt[1]"},
                    Field{R"("prompt":[261])", "prompt[0]"},
                    Field{R"("prompt":[-1])", "prompt[0]"},
                    Field{R"("prompt":[1.5])", "prompt[0]"},
                    Field{R"("prompt":[[1,4294967297]])", "prompt[0][1]"},
                    Field{R"("prompt":5)", "prompt"},
                    Field{R"("prompt":{"a":1})", "prompt"},
                    Field{R"("prompt":null)", "prompt"},
                    Field{R"("prompt":"","add_special_tokens":false)", "prompt"},
                    Field{R"("n":1)", "prompt"},
                    Field{R"("prompt":"a","max_tokens":0)", "max_tokens"},
                    Field{R"("prompt":"a","max_tokens":0,"echo":true)", ""},
                    Field{R"("prompt":"a","logprobs":21)", "logprobs"},
                    Field{R"("prompt":"a","logprobs":true)", "logprobs"},
                    Field{R"("prompt":"a","logprobs":5,"echo":true,"max_tokens":0)", ""},
                    Field{R"("prompt":"a","suffix":"b")", "suffix"},
                    Field{R"("prompt":"a","tools":[])", ""},
                    Field{R"("prompt":"a","tool_choice":"none")", ""},
                    Field{R"("prompt":"a","tools":[{"type":"function","function":{"name":"f"}}])",
                          "tools"},
                    Field{R"("prompt":"a","tools":{})", "tools"},
                    Field{R"("prompt":"a","tool_choice":"required")", "tool_choice"},
                    Field{R"("prompt":"a","tool_choice":{"type":"function"})", "tool_choice"}));

TEST_F(HandlersTest, EchoWithLogprobsAsksForThePrompts) {
  EXPECT_EQ(Made(Complete(R"("prompt":"a","echo":true,"logprobs":2)")).sampling.prompt_logprobs, 2);
  EXPECT_EQ(Made(Complete(R"("prompt":"a","logprobs":2)")).sampling.prompt_logprobs, -1);
}

TEST_F(HandlersTest, AnUnknownModelIsNotFound) {
  for (const Handler handler : {ChatCompletions, Completions, Tokenize, Detokenize}) {
    const Answer answer = Call(
        handler,
        R"({"model":"other","prompt":"a","tokens":[1],"messages":[{"role":"user","content":"a"}]})");
    EXPECT_EQ(answer.status(), 404);
    EXPECT_EQ(answer.fault.param, "model");
    EXPECT_EQ(answer.fault.code, "model_not_found");
  }
  EXPECT_TRUE(Chat(R"("model":"alias")").outcome.ok());
  EXPECT_EQ(Chat(R"("model":5)").fault.param, "model");
}

TEST_F(HandlersTest, TokenizeAndBack) {
  const auto body = [](const Answer& answer) {
    return Json::parse(std::get<HttpResponse>(*answer.outcome).body);
  };
  auto tokens = body(Call(Tokenize, R"({"prompt":"wob","return_token_strs":true})"));
  EXPECT_EQ(tokens["tokens"], (std::vector<int>{kBos, kWord, 'b'}));
  EXPECT_EQ(tokens["count"], 3);
  EXPECT_EQ(tokens["max_model_len"], 1000);
  EXPECT_EQ(tokens["token_strs"], (std::vector<std::string>{"<s>", "wo", "b"}));
  tokens = body(Call(Tokenize, R"({"messages":[{"role":"user","content":"a"}]})"));
  EXPECT_EQ(tokens["tokens"].front(), kBos);
  EXPECT_TRUE(tokens["token_strs"].is_null());
  EXPECT_EQ(body(Call(Detokenize, R"({"tokens":[119,260,98]})"))["prompt"], "wwob");
  EXPECT_EQ(body(Call(Detokenize, R"({"tokens":[]})"))["prompt"], "");
  EXPECT_EQ(Call(Detokenize, R"({"tokens":[999]})").fault.param, "tokens[0]");
  EXPECT_EQ(Call(Detokenize, "{}").fault.param, "tokens");
  EXPECT_EQ(Call(Tokenize, "{}").fault.param, "prompt");
}

}  // namespace
}  // namespace inferd::api
