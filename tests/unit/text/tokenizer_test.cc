// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include "unit/text/cases.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace inferd::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A SentencePiece vocabulary with what real files have: user-defined space runs, copies of byte
/// tokens, padding.
Vocabulary SmallSentencePiece() {
  Vocabulary out;
  out.model = "llama";
  const auto add = [&](const std::string& token, TokenType type, float score) {
    out.tokens.push_back(token);
    out.types.push_back(static_cast<std::int32_t>(type));
    out.scores.push_back(score);
    return static_cast<std::int32_t>(out.tokens.size() - 1);
  };
  out.unk_id = add("<unk>", TokenType::kUnknown, 0);
  out.bos_id = add("<s>", TokenType::kControl, 0);
  out.eos_id = add("</s>", TokenType::kControl, 0);
  for (int b = 0; b < 256; ++b) {
    add(fmt::format("<0x{:02X}>", b), TokenType::kByte, 0);
  }
  add("<0x61>\xEE\x80\x80", TokenType::kByte, 0);   // 259: a copy of byte 'a'
  add("  ", TokenType::kUserDefined, -1000);        // 260
  add("   ", TokenType::kUserDefined, -1000);       // 261
  add("\xE2\x96\x81", TokenType::kNormal, -10);     // 262
  add("t", TokenType::kNormal, -11);                // 263
  add("e", TokenType::kNormal, -12);                // 264
  add("x", TokenType::kNormal, -13);                // 265
  add("te", TokenType::kNormal, -1);                // 266
  add("xt", TokenType::kNormal, -2);                // 267
  add("text", TokenType::kNormal, -3);              // 268
  add("\xE2\x96\x81text", TokenType::kNormal, -4);  // 269
  add("<|end|>", TokenType::kControl, 0);           // 270
  add("[PAD271]", TokenType::kUnused, -1000);       // 271
  out.add_space_prefix = false;
  return out;
}

std::shared_ptr<const Tokenizer> Make(const Vocabulary& vocabulary) {
  auto tokenizer = Tokenizer::FromVocab(vocabulary);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  return *tokenizer;
}

std::vector<std::int32_t> EncodePlain(const Tokenizer& tokenizer,
                                      std::string_view text,
                                      bool parse_special = true) {
  auto ids = tokenizer.Encode(text, {.add_special = false, .parse_special = parse_special});
  EXPECT_TRUE(ids.ok()) << ids.error().message();
  return *ids;
}

std::string MessageOf(const Vocabulary& vocabulary) {
  const auto tokenizer = Tokenizer::FromVocab(vocabulary);
  return tokenizer.ok() ? "accepted" : tokenizer.error().message();
}

/// (vocabulary kind, from GGUF arrays or from tokenizer.json)
class ReferenceCases : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(ReferenceCases, SameIdsAndTextAsTheReferenceTokenizer) {
  const auto [kind, from_arrays] = GetParam();
  const auto tokenizer = from_arrays ? TokenizerFromVocabulary(kind) : TokenizerFromJsonFile(kind);
  const nlohmann::json cases = ReadJson(DataPath(std::string("text/") + kind + "_cases.json"));
  ASSERT_GE(cases.size(), 60u);
  for (const auto& c : cases) {
    const auto text = c["text"].get<std::string>();
    const bool parse = c["parse_special"];
    SCOPED_TRACE("parse_special " + std::to_string(parse) + ", text: " + text);
    const auto want = c["ids"].get<std::vector<std::int32_t>>();
    EXPECT_EQ(EncodePlain(*tokenizer, text, parse), want);
    if (text.rfind("<s>", 0) != 0 || !parse ||
        !tokenizer->adds_bos()) {  // a BOS literal is not doubled: own test
      const auto with_special =
          tokenizer->Encode(text, {.add_special = true, .parse_special = parse});
      ASSERT_TRUE(with_special.ok());
      EXPECT_EQ(*with_special, c["ids_with_special"].get<std::vector<std::int32_t>>());
    }
    EXPECT_EQ(tokenizer->Decode(want, false), c["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer->Decode(want, true), c["decoded_without_special"].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         ReferenceCases,
                         ::testing::Combine(::testing::Values("bpe", "spm"), ::testing::Bool()));

TEST(TokenizerTest, ArraysAndJsonGiveTheSameTable) {
  for (const char* kind : {"bpe", "spm"}) {
    const auto a = TokenizerFromVocabulary(kind);
    const auto b = TokenizerFromJsonFile(kind);
    ASSERT_EQ(a->vocab_size(), b->vocab_size());
    for (std::int32_t id = 0; id < a->vocab_size(); ++id) {
      EXPECT_EQ(a->TokenBytes(id), b->TokenBytes(id)) << kind << " " << id;
      EXPECT_EQ(a->IsSpecial(id), b->IsSpecial(id)) << kind << " " << id;
    }
    EXPECT_EQ(a->leading_spaces_to_strip(), b->leading_spaces_to_strip());
    EXPECT_EQ(a->adds_bos(), b->adds_bos());
    EXPECT_EQ(a->bos_id(), b->bos_id());
  }
}

TEST(TokenizerTest, SpacesOfASentencePieceVocabulary) {
  const auto tokenizer = Make(SmallSentencePiece());
  EXPECT_THAT(EncodePlain(*tokenizer, "text"), ElementsAre(268));
  EXPECT_THAT(EncodePlain(*tokenizer, " text"), ElementsAre(269));
  EXPECT_THAT(EncodePlain(*tokenizer, "  text"),
              ElementsAre(260, 268));  // user-defined runs are cut out first
  EXPECT_THAT(EncodePlain(*tokenizer, "    text"), ElementsAre(261, 269));  // the longest one wins
  EXPECT_THAT(EncodePlain(*tokenizer, "<s>text</s>"), ElementsAre(1, 268, 2));
  EXPECT_THAT(EncodePlain(*tokenizer, "\ntext"), ElementsAre(3 + '\n', 268));
  for (const char* text :
       {"text", " text", "  text", "\n text", "<|end|>text", "\xF0\x9F\x98\x8A text"}) {
    EXPECT_EQ(tokenizer->Decode(EncodePlain(*tokenizer, text), false), text);
  }
}

TEST(TokenizerTest, PrefixSpaceComesAndGoes) {
  Vocabulary vocabulary = SmallSentencePiece();
  vocabulary.add_space_prefix.reset();  // the default of "llama"
  const auto tokenizer = Make(vocabulary);
  EXPECT_THAT(EncodePlain(*tokenizer, "text"), ElementsAre(269));
  EXPECT_EQ(tokenizer->leading_spaces_to_strip(), 1);
  EXPECT_EQ(tokenizer->Decode(EncodePlain(*tokenizer, "text"), true), "text");
  vocabulary.architecture = "gemma3";  // whose files may lack the key
  EXPECT_THAT(EncodePlain(*Make(vocabulary), "text"), ElementsAre(268));
}

TEST(TokenizerTest, ByteTokensAndTheirCopies) {
  const auto tokenizer = Make(SmallSentencePiece());
  EXPECT_EQ(tokenizer->TokenBytes(3 + 0xF0), "\xF0");
  EXPECT_EQ(tokenizer->TokenBytes(259), "a");
  EXPECT_EQ(tokenizer->TokenBytes(262), " ");
  EXPECT_EQ(tokenizer->TokenBytes(270), "<|end|>");
  EXPECT_EQ(tokenizer->TokenBytes(271), "");
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer->TokenBytes(1 << 30), "");
  EXPECT_EQ(tokenizer->vocab_size(), 272);
}

TEST(TokenizerTest, SpecialsAreReadOrSpelt) {
  const auto tokenizer = Make(SmallSentencePiece());
  EXPECT_THAT(EncodePlain(*tokenizer, "text<|end|>"), ElementsAre(268, 270));
  const auto spelt = EncodePlain(*tokenizer, "text<|end|>", false);
  EXPECT_EQ(spelt.size(), 8u);
  EXPECT_EQ(tokenizer->Decode(spelt, true), "text<|end|>");
  EXPECT_TRUE(tokenizer->IsSpecial(0));
  EXPECT_TRUE(tokenizer->IsSpecial(270));
  EXPECT_FALSE(tokenizer->IsSpecial(260));
  EXPECT_FALSE(tokenizer->IsSpecial(-5));
  EXPECT_EQ(tokenizer->TokenToId("<|end|>"), 270);
  EXPECT_EQ(tokenizer->TokenToId("nothing"), std::nullopt);
}

TEST(TokenizerTest, BosIsAddedOnceAndNeverDoubled) {
  const auto tokenizer = Make(SmallSentencePiece());
  ASSERT_TRUE(tokenizer->adds_bos());
  EXPECT_THAT(*tokenizer->Encode("text", {}), ElementsAre(1, 268));
  EXPECT_THAT(*tokenizer->Encode("<s>text", {}), ElementsAre(1, 268));
  EXPECT_THAT(*tokenizer->Encode("<s><s>text", {}),
              ElementsAre(1, 1, 268));  // the second one was asked for
  EXPECT_THAT(*tokenizer->Encode("", {}), ElementsAre(1));
  EXPECT_THAT(*tokenizer->Encode("<s>text", {.add_special = false}), ElementsAre(1, 268));

  Vocabulary vocabulary = SmallSentencePiece();
  vocabulary.add_bos = false;
  vocabulary.add_eos = true;
  EXPECT_THAT(*Make(vocabulary)->Encode("text", {}), ElementsAre(268, 2));
  EXPECT_FALSE(Make(vocabulary)->adds_bos());
}

TEST(TokenizerTest, EosMarkedAsOrdinaryIsStillSpecial) {
  Vocabulary vocabulary = SmallSentencePiece();
  vocabulary.types[2] = static_cast<std::int32_t>(TokenType::kNormal);
  const auto tokenizer = Make(vocabulary);
  EXPECT_TRUE(tokenizer->IsSpecial(2));
  EXPECT_THAT(EncodePlain(*tokenizer, "text</s>"), ElementsAre(268, 2));
}

TEST(TokenizerTest, SplittingRulesByName) {
  Vocabulary vocabulary = ReadVocabulary(DataPath("text/bpe_vocabulary.json"));
  for (const char* pre : {"gpt-2",
                          "llama-bpe",
                          "qwen2",
                          "qwen35",
                          "deepseek-coder",
                          "deepseek-v3",
                          "gpt-4o",
                          "tekken",
                          "falcon",
                          "starcoder",
                          "command-r",
                          "smollm",
                          "stablelm2",
                          "bloom",
                          "viking",
                          "default",
                          ""}) {
    vocabulary.pre = pre;
    const auto tokenizer = Make(vocabulary);
    const std::string text =
        "Hello the 12345 w\xC3\xB6rld's\n\n  \xE4\xB8\x80\xE4\xBA\x8C, ok?! \t x";
    EXPECT_EQ(tokenizer->Decode(EncodePlain(*tokenizer, text), true), text) << pre;
  }
  vocabulary.pre = "no-such-rule";
  const auto tokenizer = Tokenizer::FromVocab(vocabulary);
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.error().code(), Code::kUnimplemented);
  EXPECT_THAT(tokenizer.error().message(), HasSubstr("no-such-rule"));
}

TEST(TokenizerTest, RefusesArraysThatDisagree) {
  const Vocabulary good = SmallSentencePiece();
  Vocabulary bad = good;
  bad.scores.pop_back();
  EXPECT_THAT(MessageOf(bad), HasSubstr("scores has 271 entries for 272 tokens"));
  bad = good;
  bad.types.push_back(1);
  EXPECT_THAT(MessageOf(bad), HasSubstr("token_type has 273 entries for 272 tokens"));
  bad = good;
  bad.bos_id = 272;
  EXPECT_THAT(MessageOf(bad), HasSubstr("bos_token_id is 272"));
  bad = good;
  bad.scores.clear();
  EXPECT_THAT(MessageOf(bad), HasSubstr("scores is missing"));
  bad = good;
  bad.tokens[265] = "\xFF";
  EXPECT_THAT(MessageOf(bad), HasSubstr("token 265 is not valid UTF-8"));
  bad = good;
  bad.tokens[10] = "<0xZZ>";
  EXPECT_THAT(MessageOf(bad), HasSubstr("token 10 ('<0xZZ>')"));
  bad = good;
  bad.model = "t5";
  EXPECT_THAT(MessageOf(bad), HasSubstr("'t5'"));
  EXPECT_THAT(MessageOf(Vocabulary{}), HasSubstr("0 tokens"));

  bad = ReadVocabulary(DataPath("text/bpe_vocabulary.json"));
  bad.merges[3] = "nospace";
  EXPECT_THAT(MessageOf(bad), HasSubstr("merge 3 ('nospace')"));
  bad.merges[3] = "zz yy";
  EXPECT_THAT(MessageOf(bad), HasSubstr("zz"));
  bad.merges.clear();
  EXPECT_THAT(MessageOf(bad), HasSubstr("merges is missing"));
}

TEST(TokenizerTest, RefusesBadJson) {
  for (const char* json : {"", "{", "[]", "{}", "{\"version\":\"1.0\"}", "\xFF\xFE"}) {
    const auto tokenizer = Tokenizer::FromJson(json, {});
    ASSERT_FALSE(tokenizer.ok()) << json;
    EXPECT_EQ(tokenizer.error().code(), Code::kInvalidArgument);
  }
  const std::string good = ReadFile(DataPath("tokenizers/spm/tokenizer.json"));
  const auto unknown_bos = Tokenizer::FromJson(good, {.bos_token = "<nope>"});
  ASSERT_FALSE(unknown_bos.ok());
  EXPECT_THAT(unknown_bos.error().message(), HasSubstr("'<nope>'"));

  nlohmann::json with_word_piece = nlohmann::json::parse(good);
  with_word_piece["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  const auto word_piece = Tokenizer::FromJson(with_word_piece.dump(), {});
  ASSERT_FALSE(word_piece.ok());
  EXPECT_EQ(word_piece.error().code(), Code::kUnimplemented);
  EXPECT_THAT(word_piece.error().message(), HasSubstr("WordPiece"));
}

TEST(TokenizerTest, TruncationAndPaddingOfTheFileAreIgnored) {
  nlohmann::json json = nlohmann::json::parse(ReadFile(DataPath("tokenizers/spm/tokenizer.json")));
  json["truncation"] = {
      {"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}};
  json["padding"] = {{"strategy", {{"Fixed", 9}}},
                     {"direction", "Right"},
                     {"pad_to_multiple_of", nullptr},
                     {"pad_id", 0},
                     {"pad_type_id", 0},
                     {"pad_token", "<unk>"}};
  const auto tokenizer = Tokenizer::FromJson(json.dump(), {});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ(EncodePlain(**tokenizer, "hello there").size(),
            EncodePlain(*TokenizerFromJsonFile("spm"), "hello there").size());
}

TEST(TokenizerTest, InvalidUtf8IsRefused) {
  const auto ids = Make(SmallSentencePiece())->Encode("ab\xC3", {});
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(ids.error().message(), HasSubstr("byte 2"));
}

TEST(TokenizerTest, LongRunsStayWhole) {
  const auto tokenizer = TokenizerFromVocabulary("bpe");
  for (const char c : {' ', '\n', 'a', '!', '7'}) {
    const std::string text = std::string(200'000, c) + "x";
    EXPECT_EQ(tokenizer->Decode(EncodePlain(*tokenizer, text), true), text);
  }
}

TEST(TokenizerTest, SharedByThreads) {
  const auto tokenizer = TokenizerFromVocabulary("bpe");
  const auto want = EncodePlain(*tokenizer, "the thing and <|im_end|> the other", false);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        EXPECT_EQ(EncodePlain(*tokenizer, "the thing and <|im_end|> the other", false), want);
      }
    });
  }
}

TEST(TokenizerTest, TokenTextForLogprobs) {
  const auto tokenizer = Make(SmallSentencePiece());
  const TokenText word = MakeTokenText(*tokenizer, 269);
  EXPECT_EQ(word.token, " text");
  EXPECT_THAT(word.bytes, ElementsAre(' ', 't', 'e', 'x', 't'));
  const TokenText part = MakeTokenText(*tokenizer, 3 + 0xF0);
  EXPECT_EQ(part.token, "\xEF\xBF\xBD");
  EXPECT_THAT(part.bytes, ElementsAre(0xF0));
  EXPECT_EQ(MakeTokenText(*tokenizer, 270).token, "<|end|>");
}

}  // namespace
}  // namespace inferd::text
