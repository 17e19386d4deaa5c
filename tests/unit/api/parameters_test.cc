// SPDX-License-Identifier: Apache-2.0
// Parameters beside the usual ones: each within its limits, refused by its path beyond, and as the
// engine gets it.
#include "api/openai/endpoints.h"
#include "protocol_fixture.h"

namespace inferd::api {
namespace {

class ParametersTest : public ProtocolTest {
 protected:
  Answer Chat(const std::string& fields) {
    return Call(ChatCompletions, Json::parse(ChatWith(fields)));
  }
  Answer Complete(const std::string& fields) {
    return Call(Completions, Json::parse("{" + fields + "}"));
  }
};

/// What a field's value leads to: no param: accepted.
struct Field {
  std::string json;
  std::string param;
};
void PrintTo(const Field& field, std::ostream* out) { *out << field.json; }

class ParameterFields : public ParametersTest, public testing::WithParamInterface<Field> {};

TEST_P(ParameterFields, AreAcceptedOrRefusedByPath) {
  const Answer answer = Chat(GetParam().json);
  EXPECT_EQ(answer.fault.param, GetParam().param) << answer.message();
  EXPECT_EQ(answer.status(), GetParam().param.empty() ? 200 : 400) << answer.message();
}

INSTANTIATE_TEST_SUITE_P(
    Samplers,
    ParameterFields,
    testing::Values(
        Field{R"("typical_p":0.5)", ""},
        Field{R"("typical_p":0)", "typical_p"},
        Field{R"("typical_p":1.1)", "typical_p"},
        Field{R"("xtc_probability":0.5,"xtc_threshold":0.1)", ""},
        Field{R"("xtc_probability":1.5)", "xtc_probability"},
        Field{R"("xtc_threshold":-1)", "xtc_threshold"},
        Field{R"("dynatemp_range":0.5,"dynatemp_exponent":2)", ""},
        Field{R"("dynatemp_range":-1)", "dynatemp_range"},
        Field{R"("dynatemp_exponent":"x")", "dynatemp_exponent"},
        Field{
            R"("dry_multiplier":0.8,"dry_base":1.75,"dry_allowed_length":2,"dry_penalty_last_n":-1)",
            ""},
        Field{R"("dry_multiplier":-1)", "dry_multiplier"},
        Field{R"("dry_base":0)", "dry_base"},
        Field{R"("dry_allowed_length":0)", "dry_allowed_length"},
        Field{R"("dry_penalty_last_n":-2)", "dry_penalty_last_n"},
        Field{R"("dry_sequence_breakers":["\n","ab"])", ""},
        Field{R"("dry_sequence_breakers":["\n",""])", "dry_sequence_breakers[1]"},
        Field{R"("dry_sequence_breakers":"\n")", "dry_sequence_breakers"},
        Field{R"("samplers":["dry","top_k","typ_p","top_p","min_p","xtc","temperature"])", ""},
        Field{R"("samplers":["top_k","mirostat"])", "samplers[1]"},
        Field{R"("samplers":"top_k")", "samplers"}));

INSTANTIATE_TEST_SUITE_P(
    ReportsAndCallers,
    ParameterFields,
    testing::Values(Field{R"("prompt_logprobs":0)", ""},
                    Field{R"("prompt_logprobs":20)", ""},
                    Field{R"("prompt_logprobs":21)", "prompt_logprobs"},
                    Field{R"("prompt_logprobs":-1)", "prompt_logprobs"},
                    Field{R"("prompt_logprobs":1,"stream":true)", "prompt_logprobs"},
                    Field{R"("return_token_ids":true)", ""},
                    Field{R"("return_token_ids":1)", "return_token_ids"},
                    Field{R"("return_tokens_as_token_ids":true)", ""},
                    Field{R"("timings_per_token":"yes")", "timings_per_token"},
                    Field{R"("truncate_prompt_tokens":5)", ""},
                    Field{R"("truncate_prompt_tokens":-1)", ""},
                    Field{R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens"},
                    Field{R"("truncate_prompt_tokens":-2)", "truncate_prompt_tokens"},
                    Field{R"("spaces_between_special_tokens":false)", ""},
                    Field{R"("spaces_between_special_tokens":0)", "spaces_between_special_tokens"},
                    Field{R"("skip_special_tokens":0)", "skip_special_tokens"},
                    Field{R"("thinking_token_budget":0)", ""},
                    Field{R"("thinking_token_budget":-1)", "thinking_token_budget"},
                    Field{R"("reasoning_effort":"none")", ""},
                    Field{R"("service_tier":"auto")", ""},
                    Field{R"("service_tier":"flex")", ""},
                    Field{R"("service_tier":"gold")", "service_tier"},
                    Field{R"("service_tier":1)", "service_tier"},
                    Field{R"("safety_identifier":"s")", ""},
                    Field{R"("safety_identifier":[])", "safety_identifier"},
                    Field{R"("stream":true,"stream_options":{"continuous_usage_stats":true})", ""},
                    Field{R"("stream":true,"stream_options":{"continuous_usage_stats":1})",
                          "stream_options.continuous_usage_stats"}));

TEST_F(ParametersTest, TheCallerAndHisPriorityReachTheEngine) {
  const auto plain = Made(Chat(R"("user":"ada","safety_identifier":"other")"));
  EXPECT_EQ(plain.user, "ada");
  EXPECT_EQ(plain.priority, 0);
  EXPECT_EQ(Made(Chat(R"("safety_identifier":"bob")")).user, "bob");
  EXPECT_EQ(Made(Chat("\"user\":\"" + std::string(1000, 'x') + "\"")).user.size(), 256U);
  EXPECT_GT(Made(Chat(R"("service_tier":"flex")")).priority, 0);
  EXPECT_LT(Made(Chat(R"("service_tier":"priority")")).priority, 0);
  EXPECT_EQ(Made(Chat(R"("service_tier":"flex","priority":3)")).priority, 3);
}

TEST_F(ParametersTest, SamplersReachTheEngine) {
  const auto sampling =
      Made(Chat(R"("dry_multiplier":0.5,"dry_sequence_breakers":["o"],"typical_p":0.5,)"
                R"("samplers":["penalties","min_p","temperature"])"))
          .sampling;
  EXPECT_EQ(sampling.dry_breakers, (std::vector<std::int32_t>{'o', kWord}))
      << "all tokens with the text";
  EXPECT_EQ(sampling.typical_p, 0.5);
  EXPECT_EQ(
      sampling.samplers,
      (std::vector<spec::SamplerKind>{spec::SamplerKind::kMinP, spec::SamplerKind::kTemperature}));
  EXPECT_TRUE(Made(Chat(R"("n":1)")).sampling.dry_breakers.empty());
  const auto usual = Made(Chat(R"("dry_multiplier":1)")).sampling.dry_breakers;
  EXPECT_EQ(usual, (std::vector<std::int32_t>{'\n', '"', '*', ':'}));
}

TEST_F(ParametersTest, OfALongPromptTheLastTokensAreKept) {
  const auto cut = Made(Chat(R"("truncate_prompt_tokens":7)"));
  // <s>, and the last six of: u s e r : h i <|assistant|>
  EXPECT_EQ(model_->tokenizer->Decode(cut.prompt, false), "<s>er:hi<|assistant|>");
  const auto whole = Made(Chat(R"("truncate_prompt_tokens":100)"));
  EXPECT_EQ(model_->tokenizer->Decode(whole.prompt, false), "<s><|user|>user:hi<|assistant|>");

  const auto ids = Made(Complete(R"("prompt":[1,2,3,4],"truncate_prompt_tokens":2)"));
  EXPECT_EQ(ids.prompt, (std::vector<std::int32_t>{3, 4}));
  // What fits: 1000 tokens less 900 of output. No other way would take so long a text.
  const std::string text = "\"prompt\":\"" + std::string(5000, 'a') + "b\",\"max_tokens\":900";
  EXPECT_EQ(Complete(text).status(), 400);
  const auto fits = Made(Complete(text + R"(,"truncate_prompt_tokens":-1)"));
  EXPECT_EQ(fits.prompt.size(), 100U);
  EXPECT_EQ(fits.prompt.back(), 'b');
  EXPECT_EQ(fits.max_tokens, 900);
  EXPECT_EQ(Complete(text + R"(,"truncate_prompt_tokens":101)").status(), 400);
}

}  // namespace
}  // namespace inferd::api
