// SPDX-License-Identifier: Apache-2.0
// json_parse.h and json_writer.h.
#include "api/core/json_parse.h"
#include "api/core/json_writer.h"
#include "api/core/limits.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <limits>
#include <string>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

TEST(ParseJsonObject, KeepsOrderAndValues) {
  Fault fault;
  auto parsed =
      ParseJsonObject(R"({"b": [1, -2, 2.5, true, null, "é\n"], "a": {"z": {}, "y": []}})", &fault);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message();
  EXPECT_EQ(parsed->dump(), R"({"b":[1,-2,2.5,true,null,"é\n"],"a":{"z":{},"y":[]}})");
}

struct Bad {
  std::string body;
  std::string param;
};

class Refused : public testing::TestWithParam<Bad> {};

TEST_P(Refused, WithTheField) {
  Fault fault;
  const auto parsed = ParseJsonObject(GetParam().body, &fault);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(fault.param, GetParam().param);
}

INSTANTIATE_TEST_SUITE_P(Bodies,
                         Refused,
                         testing::Values(Bad{"", ""},
                                         Bad{"[]", ""},
                                         Bad{"3", ""},
                                         Bad{"{", ""},
                                         Bad{"{}x", ""},
                                         Bad{"{'a':1}", ""},
                                         Bad{"{\"a\":1,}", "a"},
                                         Bad{"{\"seed\": 1e400}", "seed"},
                                         Bad{"{\"a\":{\"b\":[1,{\"c\":-1e999}]}}", "a.b[2].c"},
                                         Bad{"{\"temperature\": NaN}", "temperature"},
                                         Bad{"{\"temperature\": Infinity}", "temperature"},
                                         Bad{"{\"temperature\": -Infinity}", "temperature"},
                                         Bad{"{\"a\":1,\"a\":2}", "a"},
                                         Bad{"{\"a\":{\"x\":1,\"x\":1}}", "a.x"},
                                         Bad{"{\"a\":\"\xff\"}", "a"},
                                         Bad{"{\"a\":\"\xc3\"}", "a"},
                                         Bad{"{\"a\":\"\\ud800\"}", "a"},
                                         Bad{"{\"a\":\"\xed\xa0\x80\"}", "a"},
                                         Bad{"{\"a\":01}", "a"},
                                         Bad{"{\"a\":+1}", "a"}));

TEST(ParseJsonObject, BoundsDepth) {
  const auto nested = [](std::size_t depth) {
    return "{\"a\":" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  Fault fault;
  EXPECT_TRUE(ParseJsonObject(nested(limits::kJsonDepth), &fault).ok());
  const auto deep = ParseJsonObject(nested(limits::kJsonDepth + 1), &fault);
  ASSERT_FALSE(deep.ok());
  EXPECT_NE(deep.error().message().find("deeper than 64"), std::string::npos);
  EXPECT_FALSE(ParseJsonObject(nested(1'000'000), &fault).ok());
}

TEST(ParseJsonObject, BoundsKeysAndValues) {
  std::string keys = "{";
  for (std::size_t i = 0; i <= limits::kJsonKeysPerObject; ++i) {
    keys += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":0";
  }
  Fault fault;
  EXPECT_FALSE(ParseJsonObject(keys + "}", &fault).ok());
  std::string values = "{\"a\":[";
  values.reserve(2 * limits::kJsonValues + 16);
  for (std::size_t i = 0; i < limits::kJsonValues; ++i) {
    values += "0,";
  }
  EXPECT_FALSE(ParseJsonObject(values + "0]}", &fault).ok());
}

TEST(AppendEscaped, ReadsBackAsTheSameText) {
  std::string all;
  for (int c = 1; c < 128; ++c) {
    all += static_cast<char>(c);
  }
  all += "é你😊";
  all += '\0';
  std::string out;
  AppendQuoted(all, &out);
  EXPECT_EQ(Json::parse(out).get<std::string>(), all);
  EXPECT_EQ(out.find('\n'), std::string::npos) << "a raw line break would end an event";
}

TEST(AppendLogprob, IsAlwaysStrictJson) {
  const auto text = [](float value) {
    std::string out;
    AppendLogprob(value, &out);
    return out;
  };
  EXPECT_EQ(text(-0.5F), "-0.5");
  EXPECT_EQ(text(-3), "-3.0");
  EXPECT_EQ(text(-std::numeric_limits<float>::infinity()), "-9999.0");
  EXPECT_EQ(text(std::numeric_limits<float>::quiet_NaN()), "-9999.0");
  EXPECT_EQ(Json::parse(text(-1.0e-20F)).get<float>(), -1.0e-20F);
}

}  // namespace
}  // namespace inferd::api
