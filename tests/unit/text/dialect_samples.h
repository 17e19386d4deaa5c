// SPDX-License-Identifier: Apache-2.0
// Replies in every built-in dialect, and what they mean.
#pragma once

#include "text/dialect.h"
#include "text/dialect_parser.h"
#include "text/output_parser.h"
#include "text/tool_shape.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inferd::text {

struct ExpectedCall {
  std::string name;
  std::string arguments;  // JSON; compared as values
  std::string id = "";    // empty: any
  friend bool operator==(const ExpectedCall&, const ExpectedCall&) = default;
};

struct Sample {
  std::string calls;  // dialect names
  std::string reasoning;
  std::string reply;
  std::string content;
  std::string thought;
  std::vector<ExpectedCall> expected;
  std::string prompt = "";
};

/// What a client makes of deltas.
struct Parsed {
  std::string content;
  std::string thought;
  std::vector<ExpectedCall> calls;
  friend bool operator==(const Parsed&, const Parsed&) = default;
};

inline std::vector<ToolShape> SampleTools() {
  const auto schema = nlohmann::ordered_json::parse(R"({"type":"object","properties":{
      "city":{"type":"string"},"days":{"type":"integer"},"exact":{"type":"boolean"},
      "where":{"type":"object"},"list":{"type":"array"},"code":{"type":"string"},
      "maybe":{"anyOf":[{"type":"string"},{"type":"null"}]},"any":{}}})");
  return {MakeToolShape("get_weather", schema),
          MakeToolShape("run", schema),
          MakeToolShape("ping", nullptr)};
}

inline const std::string kNested =
    R"({"city": "Zürich \"old\" {town} 東京", "where": {"a": [1, {"b": "}]"}], "c": null}, "days": 3})";
inline const std::string kSmall = R"({"code": "x\\y\n", "exact": true})";
inline const std::string kPythonNested =
    R"py(city="Zürich \"old\" {town} 東京", where={'a': [1, {'b': '}]'}], 'c': None}, days=3)py";

inline std::string Call(const std::string& name, const std::string& arguments) {
  return R"({"name": ")" + name + R"(", "arguments": )" + arguments + "}";
}

inline std::vector<ExpectedCall> BothCalls() { return {{"get_weather", kNested}, {"run", kSmall}}; }

inline const std::string kQwenTags =
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich \"old\" {town} "
    "東京\n</parameter>\n"
    "<parameter=where>\n{\"a\": [1, {\"b\": \"}]\"}], \"c\": null}\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";

inline std::vector<Sample> Samples() {
  const std::string both = Call("get_weather", kNested);
  const std::string second = Call("run", kSmall);
  std::vector<Sample> samples;
  const auto add = [&](Sample sample) { samples.push_back(std::move(sample)); };
  const std::string code = "for i in x:\n    print(i)\n\n" + std::string(200, 'z') + "é";
  const std::string code_json = nlohmann::json({{"code", code}, {"exact", true}}).dump();

  add({"hermes",
       "think",
       "<think>\nWhere?\n</think>\n\nI look.\n<tool_call>\n" + both +
           "\n</tool_call>\n<tool_call>\n" + second + "\n</tool_call>",
       "I look.",
       "Where?",
       BothCalls()});
  add({"hermes",
       "",
       "<tool_call>" + both + "</tool_call>\n\nand <b>text</b> ",
       "and <b>text</b> ",
       "",
       {{"get_weather", kNested}}});
  add({"llama3_json",
       "",
       R"({"name": "get_weather", "parameters": )" + kNested + "}; " + second,
       "",
       "",
       BothCalls()});
  add({"llama3_json", "", "<|python_tag|>" + both + ";" + second, "", "", BothCalls()});
  add({"llama3_json",
       "",
       R"({"type": "function", "function": {"name": "run", "parameters": )" + kSmall + "}}",
       "",
       "",
       {{"run", kSmall}}});
  add({"pythonic",
       "",
       "[get_weather(" + kPythonNested + R"py(), run(code='x\\y\n', exact=True)])py",
       "",
       "",
       BothCalls()});
  add({"llama4_pythonic",
       "",
       "<|python_start|>[get_weather(" + kPythonNested +
           R"py(), run(code='x\\y\n', exact=True)]<|python_end|>)py",
       "",
       "",
       BothCalls()});
  add({"lfm2",
       "",
       "Yes: <|tool_call_start|>[ping(), run(code=\"x\\\\y\\n\", "
       "exact=True,)]<|tool_call_end|>done",
       "Yes:done",
       "",
       {{"ping", "{}"}, {"run", kSmall}}});
  add({"mistral", "", "[TOOL_CALLS] [" + both + ", " + second + "]", "", "", BothCalls()});
  add({"mistral_args",
       "mistral",
       "[THINK]hm[/THINK]On it.[TOOL_CALLS]get_weather[ARGS]" + kNested +
           "[TOOL_CALLS]run[CALL_ID]123456789[ARGS]" + kSmall,
       "On it.",
       "hm",
       {{"get_weather", kNested}, {"run", kSmall, "123456789"}}});
  add({"deepseek_v3",
       "think",
       "Looking.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```"
       "json\n" +
           kNested +
           "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>run\n```json\n" +
           kSmall + "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "Looking.",
       "",
       BothCalls()});
  add({"deepseek_v31",
       "think",
       "so</think>ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>" +
           kNested + "<｜tool▁call▁end｜><｜tool▁call▁begin｜>run<｜tool▁sep｜>" + kSmall +
           "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "ok",
       "so",
       BothCalls(),
       "<｜User｜>hi<｜Assistant｜><think>"});
  add({"glm45",
       "think",
       "\n<think>hm</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich "
       "\"old\" "
       "{town} 東京</arg_value>\n<arg_key>where</arg_key>\n<arg_value>{\"a\": [1, {\"b\": "
       "\"}]\"}], "
       "\"c\": null}</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n"
       "<tool_call>ping</tool_call>",
       "",
       "hm",
       {{"get_weather", kNested}, {"ping", "{}"}}});
  add({"glm45",
       "think",
       "<tool_call>run<arg_key>code</arg_key><arg_value>" + code +
           "</arg_value><arg_key>exact</arg_key><arg_value>true</arg_value></tool_call>",
       "",
       "",
       {{"run", code_json}}});
  add({"kimi_k2",
       "think",
       "Sure. <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_"
       "argument_begin|>" +
           kNested +
           "<|tool_call_end|><|tool_call_begin|>functions.run:1<|tool_call_"
           "argument_begin|>" +
           kSmall + "<|tool_call_end|><|tool_calls_section_end|>",
       "Sure.",
       "",
       {{"get_weather", kNested, "functions.get_weather:0"}, {"run", kSmall, "functions.run:1"}}});
  add({"openai",
       "openai_gptoss",
       "<|channel|>analysis<|message|>Need weather.<|end|><|start|>assistant<|channel|>commentary"
       "<|message|>One moment.<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.get_weather "
       "<|constrain|>json<|message|>" +
           kNested + "<|call|>",
       "One moment.",
       "Need weather.",
       {{"get_weather", kNested}},
       "<|start|>user<|message|>hi<|end|><|start|>assistant"});
  add({"openai",
       "openai_gptoss",
       " to=functions.run<|channel|>commentary json<|message|>" + kSmall,
       "",
       "",
       {{"run", kSmall}},
       "<|start|>user<|message|>hi<|end|><|start|>assistant"});
  add({"openai",
       "openai_gptoss",
       "<|channel|>analysis<|message|>a < b<|end|><|start|>assistant<|channel|>final<|message|>It "
       "is "
       "<b>warm</b>.\n",
       "It is <b>warm</b>.\n",
       "a < b",
       {},
       "<|start|>assistant"});
  add({"phi4_mini_json",
       "",
       "<|tool_call|>[" + both + "," + second + "]<|/tool_call|>",
       "",
       "",
       BothCalls()});
  add({"phi4_mini_json", "", "functools[" + both + "]", "", "", {{"get_weather", kNested}}});
  add({"granite",
       "granite",
       "Here is my thought process: hm\nHere is my response: so\n<|tool_call|>[" + both + ", " +
           second + "]",
       "so",
       "hm",
       BothCalls()});
  add({"granite-20b-fc",
       "",
       "<function_call> " + both + "\n<function_call> " + second,
       "",
       "",
       BothCalls()});
  add({"nemotron", "", "<TOOLCALL>[" + both + ", " + second + "]</TOOLCALL>", "", "", BothCalls()});
  add({"qwen3_coder",
       "",
       "I look.\n" + kQwenTags + "\n<tool_call>\n<function=run>\n<parameter=code>\n" + code +
           "\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n</function>\n</tool_call>",
       "I look.",
       "",
       {{"get_weather", kNested}, {"run", code_json}}});
  add({"qwen3_coder",
       "",
       "<function=run>\n<parameter=any>\n[1]\n</parameter>\n<parameter=maybe>\nnull\n"
       "</parameter>\n</function>\n</tool_call>",
       "",
       "",
       {{"run", R"({"any": [1], "maybe": null})"}}});
  add({"seed_oss",
       "seed_oss",
       "<seed:think>hm</seed:think>\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Rome"
       "</parameter>\n<parameter=list>['a', 1]</parameter>\n</function>\n</seed:tool_call>",
       "",
       "hm",
       {{"get_weather", R"({"city": "Rome", "list": ["a", 1]})"}}});
  add({"minimax_m2",
       "think",
       "hm\n</think>\n\nok\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter "
       "name=\"city\">"
       "Rome</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke "
       "name=\"ping\">\n"
       "</invoke>\n</minimax:tool_call>",
       "ok",
       "hm",
       {{"get_weather", R"({"city": "Rome", "days": 3})"}, {"ping", "{}"}},
       "]~b]ai\n<think>\n"});
  return samples;
}

}  // namespace inferd::text
