// SPDX-License-Identifier: Apache-2.0
#include "text/detokenizer.h"

#include "unit/text/cases.h"

#include <gtest/gtest.h>

#include <random>

namespace inferd::text {
namespace {

constexpr const char* kBroken = "\xEF\xBF\xBD";

std::string Assemble(const std::vector<std::string>& pieces) {
  Utf8Assembler utf8;
  std::string out;
  for (const std::string& piece : pieces) {
    utf8.Push(piece, &out);
  }
  utf8.Finish(&out);
  return out;
}

TEST(Utf8AssemblerTest, HoldsBackUntilACharacterIsWhole) {
  Utf8Assembler utf8;
  std::string out;
  for (const char* byte : {"\xF0", "\x9F", "\x98"}) {
    utf8.Push(byte, &out);
    EXPECT_EQ(out, "");
    EXPECT_TRUE(utf8.holds_tail());
  }
  utf8.Push("\x8A!", &out);
  EXPECT_EQ(out, "\xF0\x9F\x98\x8A!");
  EXPECT_FALSE(utf8.holds_tail());
  utf8.Finish(&out);
  EXPECT_EQ(out, "\xF0\x9F\x98\x8A!");
}

TEST(Utf8AssemblerTest, OneReplacementForABrokenTail) {
  for (const char* tail : {"\xF0", "\xF0\x9F", "\xF0\x9F\x98", "\xE4", "\xE4\xB8", "\xC3"}) {
    EXPECT_EQ(Assemble({"a", tail}), std::string("a") + kBroken);
  }
}

TEST(Utf8AssemblerTest, BrokenPartsAsTheStandardDecoderDoes) {
  const std::string r = kBroken;
  EXPECT_EQ(Assemble({"\x80"}), r);
  EXPECT_EQ(Assemble({"\xC0\xAF"}), r + r);                  // overlong: two parts
  EXPECT_EQ(Assemble({"\xE0\x80\xAF"}), r + r + r);          // overlong
  EXPECT_EQ(Assemble({"\xED\xA0\x80"}), r + r + r);          // surrogate
  EXPECT_EQ(Assemble({"\xF4\x90\x80\x80"}), r + r + r + r);  // past U+10FFFF
  EXPECT_EQ(Assemble({"\xF5\xFF"}), r + r);
  EXPECT_EQ(Assemble({"\xF0\x9F", "a"}), r + "a");  // one part, then text
  EXPECT_EQ(Assemble({"\xE4\xB8\xE4\xB8\x80"}), r + "\xE4\xB8\x80");
  EXPECT_EQ(Assemble({"\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF"}),
            "\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF");
}

/// The bytes of `text` cut at random places.
std::vector<std::string> RandomCuts(const std::string& bytes, std::mt19937* random) {
  std::vector<std::string> pieces;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t size = std::min<std::size_t>(bytes.size() - at, (*random)() % 5);
    pieces.push_back(bytes.substr(at, size));
    at += size;
  }
  return pieces;
}

TEST(Utf8AssemblerTest, ResultDoesNotDependOnCuts) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    const std::size_t size = random() % 24;
    for (std::size_t i = 0; i < size; ++i) {
      // Mostly bytes that matter to the decoder.
      constexpr unsigned char kInteresting[] = {
          'a', 0x80, 0xBF, 0xC2, 0xE0, 0xA0, 0xED, 0x9F, 0xF0, 0x90, 0xF4, 0x8F};
      bytes += static_cast<char>(
          random() % 4 == 0 ? random() % 256 : kInteresting[random() % std::size(kInteresting)]);
    }
    const std::string whole = Assemble({bytes});
    EXPECT_EQ(Assemble(RandomCuts(bytes, &random)), whole);
    // Valid: a strict parser takes it, and running it through again changes nothing.
    EXPECT_NO_FATAL_FAILURE(
        { EXPECT_FALSE(nlohmann::json::parse("\"" + whole + "\"", nullptr, false).is_null()); });
    EXPECT_EQ(Assemble({whole}), whole);
  }
}

class DetokenizerTest : public ::testing::TestWithParam<const char*> {};

TEST_P(DetokenizerTest, StreamedPiecesJoinToTheOneShotText) {
  const auto tokenizer = TokenizerFromVocabulary(GetParam());
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::int32_t> ids(random() % 40);
    for (std::int32_t& id : ids) {
      id =
          static_cast<std::int32_t>(random() % static_cast<unsigned>(tokenizer->vocab_size() + 3)) -
          1;
    }
    for (const bool skip : {false, true}) {
      IncrementalDetokenizer one_by_one(tokenizer, {.skip_special = skip, .at_text_start = true});
      std::string joined;
      for (const std::int32_t id : ids) {
        joined += one_by_one.Push(id);
      }
      joined += one_by_one.Finish();
      EXPECT_EQ(joined, tokenizer->Decode(ids, skip));

      IncrementalDetokenizer chunked(tokenizer, {.skip_special = skip, .at_text_start = true});
      std::string text;
      for (std::size_t at = 0; at < ids.size();) {
        const std::size_t size = std::min<std::size_t>(ids.size() - at, 1 + random() % 4);
        text += chunked.Push(std::span(ids).subspan(at, size));
        at += size;
      }
      EXPECT_EQ(text + chunked.Finish(), joined);
    }
  }
}

TEST_P(DetokenizerTest, CutEmojiEndsInOneReplacementCharacter) {
  const auto tokenizer = TokenizerFromVocabulary(GetParam());
  const auto ids = tokenizer->Encode("x\xF0\x9F\x98\x8A", {.add_special = false});
  ASSERT_TRUE(ids.ok());
  for (std::size_t cut = 1; cut <= 3; ++cut) {
    const auto part = std::span(*ids).first(ids->size() - cut);
    IncrementalDetokenizer detokenizer(tokenizer, {.at_text_start = true});
    EXPECT_EQ(detokenizer.Push(part), "x");
    EXPECT_EQ(detokenizer.Finish(), kBroken);
    EXPECT_EQ(tokenizer->Decode(part, true), std::string("x") + kBroken);
  }
}

INSTANTIATE_TEST_SUITE_P(All, DetokenizerTest, ::testing::Values("bpe", "spm"));

TEST(DetokenizerTest, SpecialsAreHiddenOrShown) {
  const auto tokenizer = TokenizerFromVocabulary("bpe");
  const auto ids = tokenizer->Encode("the<tool_call><|im_end|>a", {.add_special = false});
  ASSERT_TRUE(ids.ok());
  IncrementalDetokenizer hidden(tokenizer);
  EXPECT_EQ(hidden.Push(*ids), "the<tool_call>a");  // <tool_call> is added but not special
  IncrementalDetokenizer shown(tokenizer, {.skip_special = false});
  EXPECT_EQ(shown.Push(*ids), "the<tool_call><|im_end|>a");
}

TEST(DetokenizerTest, LeadingSpaceBelongsToTheTextNotToTheReply) {
  const auto tokenizer = TokenizerFromVocabulary("spm");
  const auto ids = tokenizer->Encode("the", {.add_special = false});  // spelt with the prefix space
  ASSERT_TRUE(ids.ok());
  IncrementalDetokenizer reply(tokenizer);
  EXPECT_EQ(reply.Push(*ids), " the");  // continues "... of" as "... of the"
  IncrementalDetokenizer text(tokenizer, {.at_text_start = true});
  EXPECT_EQ(text.Push(*ids), "the");
  EXPECT_EQ(text.Push(*ids), " the");
}

}  // namespace
}  // namespace inferd::text
