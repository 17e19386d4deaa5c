// SPDX-License-Identifier: Apache-2.0
#include "text/grammar.h"

#include "unit/text/cases.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace inferd::text {
namespace {

using ::testing::HasSubstr;

/// A vocabulary of single bytes and of a few longer tokens, two end tokens and a special one.
class GrammarTest : public ::testing::Test {
 protected:
  static constexpr std::int32_t kEnd = 1, kEnd2 = 2, kTool = 3, kFirstByte = 4;

  static void SetUpTestSuite() {
    Vocabulary raw;
    raw.model = "llama";
    const auto add = [&](const std::string& token, TokenType type) {
      raw.tokens.push_back(token);
      raw.types.push_back(static_cast<std::int32_t>(type));
      raw.scores.push_back(-static_cast<float>(raw.tokens.size()));
    };
    add("<unk>", TokenType::kUnknown);
    add("</s>", TokenType::kControl);
    add("<|end|>", TokenType::kControl);
    add("[TOOL]", TokenType::kControl);
    for (int b = 0; b < 256; ++b) {
      add(fmt::format("<0x{:02X}>", b), TokenType::kByte);
    }
    for (const char* token : {"true", "\":", "{\"", "ab", "12"}) {
      add(token, TokenType::kNormal);
    }
    raw.add_space_prefix = false;
    raw.add_bos = false;
    auto tokenizer = Tokenizer::FromVocab(raw);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    auto made = GrammarVocabulary::Make(*tokenizer, std::vector<std::int32_t>{kEnd, kEnd2});
    ASSERT_TRUE(made.ok()) << made.error().message();
    vocabulary_ = new std::shared_ptr<const GrammarVocabulary>(*made);
  }
  static void TearDownTestSuite() {
    delete vocabulary_;
    vocabulary_ = nullptr;
  }

  static std::shared_ptr<const Grammar> Compile(GrammarKind kind, std::string_view source) {
    auto grammar = Grammar::Compile(*vocabulary_, kind, source, {});
    EXPECT_TRUE(grammar.ok()) << source << "\n" << grammar.error().message();
    return grammar.ok() ? *grammar : nullptr;
  }
  static std::string CompileError(GrammarKind kind, std::string_view source) {
    auto grammar = Grammar::Compile(*vocabulary_, kind, source, {});
    EXPECT_FALSE(grammar.ok()) << source;
    if (grammar.ok()) {
      return "";
    }
    EXPECT_EQ(grammar.error().code(), Code::kInvalidArgument) << grammar.error().message();
    return grammar.error().message();
  }

  static bool Allows(const std::vector<std::uint32_t>& words, std::int32_t id) {
    return (words[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1) != 0;
  }
  static std::vector<std::uint32_t> Mask(GrammarMatcher* matcher) {
    std::vector<std::uint32_t> words(16, 0xFFFFFFFF);
    const Result<> filled = matcher->FillMask(words);
    EXPECT_TRUE(filled.ok()) << filled.error().message();
    return words;
  }

  /// Whether `text`, one byte a token, is a whole output; checks on the way that mask, Accept and
  /// IsAccepting agree.
  static bool Matches(const Grammar& grammar, std::string_view text) {
    auto matcher = grammar.NewMatcher();
    EXPECT_TRUE(matcher.ok());
    for (const char c : text) {
      const std::int32_t id = kFirstByte + static_cast<unsigned char>(c);
      const bool allowed = Allows(Mask(&*matcher), id);
      EXPECT_EQ(matcher->Accept(id).ok(), allowed) << text;
      if (!allowed) {
        return false;
      }
    }
    const auto words = Mask(&*matcher);
    const auto accepting = matcher->IsAccepting();
    EXPECT_TRUE(accepting.ok());
    EXPECT_EQ(Allows(words, kEnd), *accepting) << text;
    EXPECT_EQ(Allows(words, kEnd2), *accepting) << text;
    return *accepting;
  }
  static void Expect(GrammarKind kind,
                     std::string_view source,
                     const std::vector<std::string>& good,
                     const std::vector<std::string>& bad) {
    const auto grammar = Compile(kind, source);
    ASSERT_NE(grammar, nullptr);
    for (const std::string& text : good) {
      EXPECT_TRUE(Matches(*grammar, text)) << source << "\n" << text;
    }
    for (const std::string& text : bad) {
      EXPECT_FALSE(Matches(*grammar, text)) << source << "\n" << text;
    }
  }

  static std::shared_ptr<const GrammarVocabulary>* vocabulary_;
};

std::shared_ptr<const GrammarVocabulary>* GrammarTest::vocabulary_ = nullptr;

TEST_F(GrammarTest, JsonObjectIsAnyObjectAndNothingElse) {
  Expect(GrammarKind::kJsonObject,
         "",
         {"{}", "{\"a\":[1,2.5e3,null,true,{\"b\":\"\\u000a\"}]}", "{\n  \"a\": 1\n}"},
         {"[]", "1", "{", "{\"a\":}", "{} ", "{\"a\":1,}"});
}

TEST_F(GrammarTest, WhiteSpaceIsBounded) {
  Expect(GrammarKind::kJsonObject, "", {"{ \"a\": 1}", "{\n\n\t\t\"a\":1}"}, {"{\n\n\n\"a\":1}"});
}

TEST_F(GrammarTest, SchemaIsEnforced) {
  Expect(GrammarKind::kJsonSchema,
         R"({"type": "object", "title": "T", "properties": {
              "name": {"type": "string", "minLength": 1, "maxLength": 3},
              "age": {"type": "integer", "minimum": 0, "maximum": 120}},
             "required": ["name", "age"], "additionalProperties": false})",
         {R"({"name":"ab","age":7})"},
         {R"({"name":"","age":7})",
          R"({"name":"abcd","age":7})",
          R"({"name":"ab","age":121})",
          R"({"name":"ab"})",
          R"({"name":"ab","age":7,"x":1})"});
}

TEST_F(GrammarTest, EnumBehindReferencesIsEnforced) {
  // A chain of references, an escaped name, an anchor, the old keyword, a reference with siblings.
  Expect(GrammarKind::kJsonSchema,
         R"({"type": "array", "items": {"$ref": "#/$defs/item"},
             "$defs": {"item": {"type": "object", "additionalProperties": false,
                                "required": ["a", "b", "c", "d"],
                                "properties": {"a": {"$ref": "#/$defs/chain"},
                                               "b": {"$ref": "#/$defs/a~1b%20c"},
                                               "c": {"$ref": "#here"},
                                               "d": {"$ref": "#/definitions/old", "maxLength": 3}}},
                       "chain": {"$ref": "#/$defs/color"},
                       "color": {"enum": ["red", "blue"]},
                       "a/b c": {"const": 5},
                       "n": {"$anchor": "here", "type": "null"}},
             "definitions": {"old": {"enum": ["yes", "maybe"]}}})",
         {R"([{"a":"red","b":5,"c":null,"d":"yes"}])", "[]"},
         {R"([{"a":"green","b":5,"c":null,"d":"yes"}])",
          R"([{"a":"red","b":6,"c":null,"d":"yes"}])",
          R"([{"a":"red","b":5,"c":1,"d":"yes"}])",
          R"([{"a":"red","b":5,"c":null,"d":"maybe"}])"});
  Expect(GrammarKind::kJsonSchema,
         R"({"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf":
             [{"$ref": "#"}, {"type": "null"}]}}, "required": ["v", "next"],
             "additionalProperties": false})",
         {R"({"v":1,"next":{"v":2,"next":null}})"},
         {R"({"v":1,"next":{"v":2}})"});
  Expect(
      GrammarKind::kJsonSchema,
      R"({"type": "object", "properties": {"a": {"enum": ["x"]}, "b": {"$ref": "#/properties/a"}},
             "required": ["a", "b"], "additionalProperties": false})",
      {R"({"a":"x","b":"x"})"},
      {R"({"a":"x","b":"y"})"});
}

TEST_F(GrammarTest, OneOfOfOptionsThatExcludeEachOther) {
  const std::string schema = R"({"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
      "discriminator": {"propertyName": "kind"},
      "$defs": {"cat": {"type": "object", "properties": {"kind": {"const": "cat"}},
                        "required": ["kind"], "additionalProperties": false},
                "dog": {"type": "object", "properties": {"kind": {"enum": ["dog"]}},
                        "required": ["kind"], "additionalProperties": false}}})";
  Expect(GrammarKind::kJsonSchema,
         schema,
         {R"({"kind":"cat"})", R"({"kind":"dog"})"},
         {R"({"kind":"cow"})"});
  Expect(GrammarKind::kJsonSchema,
         R"({"oneOf": [{"type": "integer"}, {"type": "string"}]})",
         {"5", "\"a\""},
         {"null", "1.5"});
  EXPECT_THAT(CompileError(GrammarKind::kJsonSchema,
                           R"({"properties": {"p": {"oneOf": [{"type": "integer"},
                                                              {"type": "number"}]}}})"),
              HasSubstr("/properties/p/oneOf: options 0 and 1 may both match"));
}

TEST_F(GrammarTest, WhatCannotBeEnforcedIsRefusedWithItsPointer) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"properties": {"a/b": {"not": {"type": "string"}}}})",
       "/properties/a~1b/not: not is not"},
      {R"({"type": "array", "uniqueItems": true})", "/uniqueItems"},
      {R"({"if": {"type": "string"}, "then": {"minLength": 3}})", "/if"},
      {R"({"items": {"allOf": [{"dependentRequired": {"a": ["b"]}}]}})",
       "/items/allOf/0/dependentRequired"},
      {R"({"$ref": "https://example.com/schema.json"})", "https://example.com/schema.json"},
      {R"({"$ref": "#/$defs/nowhere"})", "/$ref: the reference '#/$defs/nowhere' leads nowhere"},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"contains": {}}}})", "/$defs/a/contains"},
      {R"j({"properties": {"p": {"pattern": "a(?=b)"}}})j",
       "/properties/p/pattern: the pattern 'a(?=b)' has lookahead"},
      {R"j({"pattern": "(?<!a)b"})j", "negative lookbehind"},
      {R"j({"pattern": "(a)\\1"})j", "the backreference \\1"},
      {R"j({"pattern": "\\bword\\b"})j", "the word boundary \\b"},
      {R"({"pattern": "a^b"})", "/pattern"},
      {R"j({"patternProperties": {"(?=x)": {}}})j", "/patternProperties/(?=x)"},
      {R"({"type": "string", "format": "iri"})", "/format: the format 'iri'"},
      {R"({"enum": []})", "/enum"},
      {R"({"const": 9007199254740993})", "/const"},
      {R"({"type": "text"})", "/type"},
      {R"({"minLength": -1})", "/minLength"},
      {R"({"properties": {"a": 5}})", "/properties/a: a schema must be an object or a boolean"},
      {"false", "nothing is valid"},
      {R"({"type": "string", "minLength": 5, "maxLength": 2})", "nsatisfiable"},
      {"{", "not valid JSON"},
  };
  for (const auto& [schema, message] : cases) {
    EXPECT_THAT(CompileError(GrammarKind::kJsonSchema, schema), HasSubstr(message)) << schema;
  }
  std::string deep = "{}";
  for (int i = 0; i < 70; ++i) {
    deep = R"({"items":)" + deep + "}";
  }
  EXPECT_THAT(CompileError(GrammarKind::kJsonSchema, deep), HasSubstr("levels deep"));
}

TEST_F(GrammarTest, PatternsOfJsonSchema) {
  const auto pattern = [](const std::string& text) {
    return R"({"type": "string", "maxLength": 12, "pattern": ")" + text + "\"}";
  };
  Expect(GrammarKind::kJsonSchema, pattern(R"(^\\d+$)"), {"\"042\""}, {"\"\"", "\"4a\"", "\"a4\""});
  Expect(GrammarKind::kJsonSchema, pattern(R"(\\S)"), {"\"  x \""}, {"\"\"", "\"  \""});
  Expect(GrammarKind::kJsonSchema, pattern(R"(^[\\w-]+$)"), {"\"a-b_9\""}, {"\"a.b\"", "\"\""});
  Expect(GrammarKind::kJsonSchema,
         pattern("^(a|b){2,5}$"),
         {"\"ab\"", "\"babab\""},
         {"\"a\"", "\"bababa\"", "\"abc\""});
  // A set operator of other dialects is plain text here.
  Expect(GrammarKind::kJsonSchema, pattern("^[a&&b]+$"), {"\"&a\""}, {"\"c\""});
  Expect(GrammarKind::kJsonSchema, pattern(R"(^[\\w-.]$)"), {"\"-\"", "\".\""}, {"\"!\""});
  Expect(GrammarKind::kJsonSchema, pattern("^a.c$"), {"\"abc\""}, {"\"a\\nc\""});
  Expect(GrammarKind::kJsonSchema, pattern("a/b"), {"\"xa/by\""}, {"\"ab\""});
  Expect(GrammarKind::kJsonSchema, pattern(R"(^\\u0041\\x42[\\cA-z]$)"), {"\"ABz\""}, {"\"ab1}\""});
  Expect(GrammarKind::kJsonSchema, pattern("^(?<n>a)(?:b)?$"), {"\"a\"", "\"ab\""}, {"\"b\""});
  // What a set leaves out stays out in its escaped spelling.
  for (const char* set :
       {R"([^\"])", R"([\u0000-!#-~])", R"([^\"\\\\\n])", R"([^\"\n])", R"([\\x00-!])"}) {
    Expect(GrammarKind::kJsonSchema,
           pattern(std::string("^") + set + "{1,3}$"),
           {"\"!\""},
           {R"("\"")"});
  }
  Expect(GrammarKind::kJsonSchema, pattern(R"(^[^\\\\]+$)"), {R"("\"")"}, {R"("\\")"});
  Expect(GrammarKind::kJsonSchema, pattern(R"(^\\W$)"), {R"("\"")", R"("\n")"}, {"\"a\""});
  Expect(GrammarKind::kJsonSchema, pattern("^{a}$"), {"\"{a}\""}, {"\"a\""});
}

TEST_F(GrammarTest, RegexAndChoice) {
  Expect(GrammarKind::kRegex, R"(\d{3}-[a-c]+/x)", {"123-abc/x"}, {"12-abc/x", "123-d/x", "123-"});
  Expect(GrammarKind::kRegex, "a*", {"", "aaa"}, {"b"});
  Expect(GrammarKind::kRegex, "(yes|no)", {"yes", "no"}, {"y", "yesno"});
  Expect(GrammarKind::kChoice, R"(["a", "ab", "a.*[/"])", {"a", "ab", "a.*[/"}, {"abc", "", "a."});
  EXPECT_THAT(CompileError(GrammarKind::kRegex, R"((a)\1)"), HasSubstr("backreference"));
  EXPECT_THAT(CompileError(GrammarKind::kRegex, "(a"), HasSubstr("unclosed group"));
  EXPECT_THAT(CompileError(GrammarKind::kChoice, "[]"), HasSubstr("at least one"));
  EXPECT_THAT(CompileError(GrammarKind::kChoice, "[1]"), HasSubstr("list of strings"));
}

TEST_F(GrammarTest, LarkWithEmbeddedJsonAndSpecialTokens) {
  auto schema = PrepareJsonSchema(R"({"type": "object", "properties": {"x": {"type": "integer"}},
      "required": ["x"], "additionalProperties": false})",
                                  "/tools/0/function/parameters");
  ASSERT_TRUE(schema.ok());
  const auto tool = (*vocabulary_)->LarkToken("[TOOL]");
  ASSERT_TRUE(tool.ok());
  EXPECT_FALSE((*vocabulary_)->LarkToken("[NONE]").ok());
  const std::string source =
      "start: TEXT " + *tool + " \"f\" body\nTEXT: /[a-z ]*/\nbody: %json " + *schema + "\n";
  const auto grammar = Compile(GrammarKind::kGrammar, source);
  ASSERT_NE(grammar, nullptr);
  auto matcher = grammar->NewMatcher();
  ASSERT_TRUE(matcher.ok());
  const auto feed = [&](std::string_view text) {
    for (const char c : text) {
      ASSERT_TRUE(matcher->Accept(kFirstByte + static_cast<unsigned char>(c)).ok()) << text << c;
    }
  };
  feed("hi ");
  EXPECT_TRUE(Allows(Mask(&*matcher), kTool));
  // The spelling of a special token in plain bytes is not the token.
  EXPECT_FALSE(Allows(Mask(&*matcher), kFirstByte + '['));
  EXPECT_TRUE(matcher->Accept(kTool).ok());
  EXPECT_FALSE(Allows(Mask(&*matcher), kTool));
  feed("f{\"x\":12}");
  EXPECT_TRUE(Allows(Mask(&*matcher), kEnd));
  EXPECT_TRUE(matcher->is_stopped());
  EXPECT_THAT(CompileError(GrammarKind::kGrammar, "start: \"a\" missing"), HasSubstr("missing"));
  EXPECT_THAT(PrepareJsonSchema(R"({"not": {}})", "/tools/3/function/parameters").error().message(),
              HasSubstr("/tools/3/function/parameters/not"));
}

TEST_F(GrammarTest, EbnfWithARoot) {
  Expect(GrammarKind::kGrammar,
         R"(# a list of numbers or lists
            root  ::= "[" ws (item ("," ws item)*)? "]"
            item  ::= number | root
            number ::= "-"? [0-9]{1,3} ("." [0-9]+)?
            ws ::= [ \t]*)",
         {"[]", "[1, -22,333.5]", "[[1],[[]]]"},
         {"[", "[1234]", "[1,]", "[a]"});
  Expect(GrammarKind::kGrammar,
         R"(root ::= "a" rest-of "\n\x41"
            rest-of ::= ("b" | 'c')+ )",
         {"abcb\nA"},
         {"a\nA", "abc"});
  // The border between terminals must not swallow what follows.
  Expect(GrammarKind::kGrammar,
         "root ::= [a-z]+ \"b\" tail\ntail ::= \"(\" tail \")\" | \"\"",
         {"aab", "ab(())"},
         {"a", "b(", "aac"});
  EXPECT_THAT(CompileError(GrammarKind::kGrammar, "root ::= \"a\" b"), HasSubstr("'b' is used"));
  EXPECT_THAT(CompileError(GrammarKind::kGrammar, "x ::= \"a\""), HasSubstr("no rule 'root'"));
  EXPECT_THAT(CompileError(GrammarKind::kGrammar, "root ::= (\"a\""), HasSubstr("without its ')'"));
  EXPECT_THAT(CompileError(GrammarKind::kGrammar, "root ::= [a-"), HasSubstr("without its ']'"));
}

TEST_F(GrammarTest, StructuralTag) {
  const std::string legacy = R"({"structures": [{"begin": "<f=a>", "schema": {"type": "integer"},
      "end": "</f>"}, {"begin": "<f=b>", "schema": {"const": "x"}, "end": "</f>"}],
      "triggers": ["<f="]})";
  const std::string newer = R"({"format": {"type": "triggered_tags", "triggers": ["<f="], "tags": [
      {"begin": "<f=a>", "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
       "end": "</f>"},
      {"begin": "<f=b>", "content": {"type": "json_schema", "json_schema": {"const": "x"}},
       "end": "</f>"}]}})";
  for (const std::string& source : {legacy, newer}) {
    Expect(GrammarKind::kStructuralTag,
           source,
           {"", "free text < and more", "hi <f=a>12</f> and <f=b>\"x\"</f> bye"},
           {"<f=", "<f=c>", "<f=a>\"x\"</f>", "hi <f=a>12</f> <f=a>"});
  }
  EXPECT_THAT(CompileError(GrammarKind::kStructuralTag, R"({"structures": [{"begin": "<a>",
      "schema": {"not": {}}, "end": ""}], "triggers": ["<a"]})"),
              HasSubstr("/structures/0/schema/not"));
  EXPECT_THAT(CompileError(GrammarKind::kStructuralTag, R"({"structures": [{"begin": "<a>",
      "schema": {}, "end": ""}], "triggers": ["<b"]})"),
              HasSubstr("trigger"));
}

TEST_F(GrammarTest, LongTokensAndCopies) {
  const auto grammar = Compile(GrammarKind::kJsonSchema, R"({"type": "object", "properties":
      {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false})");
  auto first = grammar->NewMatcher();
  ASSERT_TRUE(first.ok());
  const std::int32_t kTrue = kFirstByte + 256, kColon = kTrue + 1, kOpen = kTrue + 2;
  EXPECT_TRUE(Allows(Mask(&*first), kOpen));
  ASSERT_TRUE(first->Accept(kOpen).ok());
  ASSERT_TRUE(first->Accept(kFirstByte + 'a').ok());
  ASSERT_TRUE(first->Accept(kColon).ok());
  auto second = first->Clone();
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(Allows(Mask(&*first), kTrue));
  ASSERT_TRUE(first->Accept(kTrue).ok());
  EXPECT_FALSE(first->Accept(kTrue).ok());  // and the matcher stays where it was
  ASSERT_TRUE(first->Accept(kFirstByte + '}').ok());
  EXPECT_TRUE(first->is_stopped());
  EXPECT_FALSE(second->is_stopped());
  EXPECT_TRUE(Allows(Mask(&*second), kFirstByte + 'f'));
  EXPECT_FALSE(Allows(Mask(&*second), kEnd));
  ASSERT_TRUE(first->Accept(kEnd2).ok());
  EXPECT_FALSE(first->Accept(kEnd).ok());
}

TEST_F(GrammarTest, LimitsHold) {
  GrammarLimits limits;
  limits.source_bytes = 10;
  auto grammar = Grammar::Compile(*vocabulary_, GrammarKind::kRegex, "abcdefghijkl", limits);
  ASSERT_FALSE(grammar.ok());
  EXPECT_THAT(grammar.error().message(), HasSubstr("at most 10 are taken"));
  EXPECT_NE(CompileError(GrammarKind::kRegex, "a{99999}"), "");
  limits = {};
  limits.grammar_size = 20;
  grammar = Grammar::Compile(*vocabulary_, GrammarKind::kJsonObject, "", limits);
  ASSERT_FALSE(grammar.ok());
  EXPECT_EQ(grammar.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(grammar.error().message(), HasSubstr("the grammar cannot be used"));
  // Costly only while it runs: the mask fails, in bounded time.
  limits = {};
  limits.step_items = 20;
  grammar = Grammar::Compile(*vocabulary_,
                             GrammarKind::kGrammar,
                             "start: a\na: a a a | \"x\" | \"xx\" | \"xxx\" |",
                             limits);
  ASSERT_TRUE(grammar.ok()) << grammar.error().message();
  auto matcher = (*grammar)->NewMatcher();
  ASSERT_TRUE(matcher.ok());
  Result<> filled;
  std::vector<std::uint32_t> words(16);
  for (int i = 0; i < 50 && filled.ok(); ++i) {
    filled = matcher->FillMask(words);
    if (filled.ok()) {
      filled = matcher->Accept(kFirstByte + 'x');
    }
  }
  ASSERT_FALSE(filled.ok());
  EXPECT_THAT(filled.error().message(), HasSubstr("the grammar cannot go on"));
}

/// Sources made to exhaust stack or time of a careless compiler.
TEST_F(GrammarTest, HostileSourcesAreRefusedOrCompiled) {
  const auto repeat = [](std::string_view text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) {
      out += text;
    }
    return out;
  };
  const auto chain = [](int count, auto rule) {
    std::string out;
    for (int i = 0; i < count; ++i) {
      out += rule(i, i + 1);
    }
    return out;
  };
  const std::vector<std::pair<GrammarKind, std::string>> sources = {
      {GrammarKind::kGrammar, "start: " + repeat("(", 100'000) + "\"a\""},
      {GrammarKind::kGrammar, "start: A\nA: " + repeat("~ ", 100'000) + "\"a\""},
      {GrammarKind::kGrammar,
       "start: r0\n" +
           chain(50'000, [](int a, int b) { return fmt::format("r{}: \"a\" r{}\n", a, b); })},
      {GrammarKind::kGrammar,
       "start: r0\n" +
           chain(4'900, [](int a, int b) { return fmt::format("r{}: \"a\" r{}\n", a, b); }) +
           "r4900: \"b\""},
      {GrammarKind::kGrammar, "root ::= " + repeat("(", 100'000) + "\"a\""},
      {GrammarKind::kGrammar,
       "root ::= r0\n" +
           chain(20'000, [](int a, int b) { return fmt::format("r{} ::= \"a\" r{}\n", a, b); })},
      {GrammarKind::kRegex, repeat("(", 50'000) + repeat(")", 50'000)},
      {GrammarKind::kRegex, repeat("a", 200'000)},
      {GrammarKind::kRegex, repeat("(a?){99}", 2'000)},
      {GrammarKind::kJsonSchema, repeat("[", 100'000)},
      {GrammarKind::kJsonSchema, repeat(R"({"items":)", 100'000)},
      {GrammarKind::kJsonSchema,
       R"({"$ref":"#/$defs/r0","$defs":{)" +
           chain(1'900,
                 [](int a, int b) {
                   return fmt::format(
                       R"("r{}":{{"anyOf":[{{"type":"null"}},{{"$ref":"#/$defs/r{}"}}]}},)", a, b);
                 }) +
           R"("r1900":{"type":"null"}}})"},
      {GrammarKind::kJsonSchema,
       R"({"patternProperties":{)" +
           chain(2'000, [](int a, int) { return fmt::format(R"("^x{}":{{}},)", a); }) +
           R"("z":{}}})"},
      {GrammarKind::kJsonSchema, R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}})"},
  };
  for (const auto& [kind, source] : sources) {
    const auto grammar = Grammar::Compile(*vocabulary_, kind, source, {});
    if (!grammar.ok()) {
      EXPECT_EQ(grammar.error().code(), Code::kInvalidArgument) << grammar.error().message();
      EXPECT_LT(grammar.error().message().size(), 2'100U) << source.substr(0, 60);
      continue;
    }
    auto matcher = (*grammar)->NewMatcher();
    ASSERT_TRUE(matcher.ok());
    std::vector<std::uint32_t> words(16);
    (void)matcher->FillMask(words).ok();  // May be too costly, must not crash.
  }
}

/// Cut and mangled sources give a grammar or InvalidArgument, nothing else.
TEST_F(GrammarTest, MangledSourcesNeverBreakTheCompiler) {
  const std::vector<std::pair<GrammarKind, std::string>> seeds = {
      {GrammarKind::kJsonSchema,
       R"j({"type":"object","properties":{"a":{"$ref":"#/$defs/x"},"b":{"type":["string","null"],
           "pattern":"^(a|b)[^c]+$","maxLength":5}},"required":["a"],"oneOf":[{"minProperties":1}],
           "$defs":{"x":{"enum":[1,"y",null]}},"additionalProperties":{"type":"integer","minimum":3}})j"},
      {GrammarKind::kRegex, R"(^(?:[a-z\d]{2,3}|\u0041+?)\s*[^"\]]$)"},
      {GrammarKind::kGrammar,
       "start: A (b | \"c\"i)* %json {\"type\":\"null\"}\nA: /[0-9]+/\nb: A? <[3]>\n"},
      {GrammarKind::kGrammar,
       "root ::= (a | \"b\")* [^x-z]+ # c\na ::= \"\\x41\" root{1,2} | \"\""},
      {GrammarKind::kChoice, R"(["a","b\n",""])"},
      {GrammarKind::kStructuralTag,
       R"({"structures":[{"begin":"<a>","schema":{"type":"null"},"end":"</a>"}],"triggers":["<a"]})"},
  };
  std::mt19937 random(5);
  for (const auto& [kind, seed] : seeds) {
    for (int i = 0; i < 150; ++i) {
      std::string source = seed;
      for (std::uint32_t change = 0; change <= random() % 3; ++change) {
        const std::size_t at = random() % source.size();
        switch (random() % 4) {
          case 0:
            source.resize(std::max<std::size_t>(at, 1));
            break;
          case 1:
            source[at] = static_cast<char>(random() % 256);
            break;
          case 2:
            source.erase(at, 1 + random() % 5);
            break;
          default:
            source.insert(at, seed.substr(random() % seed.size(), 8));
        }
        if (source.empty()) {
          source = "x";
        }
      }
      const auto grammar = Grammar::Compile(*vocabulary_, kind, source, {});
      if (!grammar.ok()) {
        EXPECT_EQ(grammar.error().code(), Code::kInvalidArgument) << source << "\n"
                                                                  << grammar.error().message();
      }
    }
  }
}

TEST_F(GrammarTest, AVocabularyNeedsAnEndToken) {
  const auto made = GrammarVocabulary::Make(TokenizerFromVocabulary("bpe"), {});
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message(), HasSubstr("no end token"));
}

/// Outputs drawn at random from the masks are what the grammar says, with real vocabularies of
/// both kinds.
TEST(GrammarTokenizerTest, RandomWalksStayInsideTheGrammar) {
  for (const std::string kind : {"bpe", "spm"}) {
    const auto tokenizer = TokenizerFromVocabulary(kind);
    const std::int32_t end = tokenizer->eos_id().value_or(0);
    auto vocabulary = GrammarVocabulary::Make(tokenizer, std::vector<std::int32_t>{end});
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.error().message();
    auto grammar = Grammar::Compile(*vocabulary,
                                    GrammarKind::kJsonSchema,
                                    R"({"type": "object",
        "properties": {"s": {"type": "string", "maxLength": 6},
                       "n": {"type": "integer", "minimum": -5, "maximum": 70},
                       "l": {"type": "array", "items": {"enum": ["x", "yy"]}, "maxItems": 3}},
        "required": ["s", "n", "l"], "additionalProperties": false})",
                                    {});
    ASSERT_TRUE(grammar.ok()) << grammar.error().message();
    std::mt19937 random(7);
    int complete = 0;
    for (int walk = 0; walk < 200; ++walk) {
      auto matcher = (*grammar)->NewMatcher();
      ASSERT_TRUE(matcher.ok());
      const auto size = static_cast<std::size_t>(tokenizer->vocab_size());
      std::vector<std::int32_t> ids;
      for (int i = 0; i < 300; ++i) {
        std::vector<std::uint32_t> words((size + 31) / 32);
        ASSERT_TRUE(matcher->FillMask(words).ok());
        std::vector<std::int32_t> allowed;
        for (std::size_t id = 0; id < size; ++id) {
          if ((words[id / 32] >> (id % 32) & 1) != 0) {
            allowed.push_back(static_cast<std::int32_t>(id));
          }
        }
        ASSERT_FALSE(allowed.empty());
        const std::int32_t id = allowed[random() % allowed.size()];
        ASSERT_TRUE(matcher->Accept(id).ok());
        if (id == end) {
          break;
        }
        ids.push_back(id);
      }
      if (!matcher->is_stopped()) {
        continue;
      }
      ++complete;
      std::string text;
      for (const std::int32_t id : ids) {
        text += tokenizer->TokenBytes(id);
      }
      const auto json = nlohmann::json::parse(text, nullptr, false);
      ASSERT_TRUE(json.is_object()) << text;
      ASSERT_EQ(json.size(), 3U) << text;
      EXPECT_TRUE(json["s"].is_string()) << text;
      EXPECT_GE(json["n"].get<int>(), -5) << text;
      EXPECT_LE(json["n"].get<int>(), 70) << text;
      EXPECT_LE(json["l"].size(), 3U) << text;
      for (const auto& item : json["l"]) {
        EXPECT_TRUE(item == "x" || item == "yy") << text;
      }
    }
    EXPECT_GT(complete, 150) << kind;
  }
}

}  // namespace
}  // namespace inferd::text
