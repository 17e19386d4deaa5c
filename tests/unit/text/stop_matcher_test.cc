// SPDX-License-Identifier: Apache-2.0
#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace inferd::text {
namespace {

std::shared_ptr<const StopStrings> Stops(const std::vector<std::string>& strings) {
  auto stops = StopStrings::Make(strings);
  EXPECT_TRUE(stops.ok()) << stops.error().message();
  return *stops;
}

struct Outcome {
  std::string text;
  std::optional<std::size_t> matched;
  bool operator==(const Outcome&) const = default;
};

Outcome Feed(const std::vector<std::string>& strings,
             bool include,
             const std::vector<std::string>& deltas) {
  StopMatcher matcher(Stops(strings), include);
  Outcome out;
  for (const std::string& delta : deltas) {
    const StopMatcher::Output piece = matcher.Push(delta);
    out.text += piece.text;
    if (piece.matched.has_value()) {
      out.matched = piece.matched;
      break;
    }
  }
  if (!out.matched.has_value()) {
    out.text += matcher.Finish();
  }
  return out;
}

TEST(StopMatcherTest, NothingOfAStopStringLeaksOverTokenBorders) {
  StopMatcher matcher(Stops({"own fox"}), false);
  EXPECT_EQ(matcher.Push("The quick br").text, "The quick br");
  EXPECT_EQ(matcher.Push("own").text, "");
  const auto last = matcher.Push(" fox");
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(last.matched, 0u);
  EXPECT_EQ(matcher.Push("more").text, "");
  EXPECT_TRUE(matcher.matched());
}

TEST(StopMatcherTest, IncludeKeepsTheStopString) {
  EXPECT_EQ(Feed({"own fox"}, true, {"The quick br", "own", " fox jumps"}).text,
            "The quick brown fox");
  EXPECT_EQ(Feed({"own fox"}, false, {"The quick br", "own", " fox jumps"}).text, "The quick br");
}

TEST(StopMatcherTest, FalseStartIsReleased) {
  StopMatcher matcher(Stops({"own fox"}), false);
  EXPECT_EQ(matcher.Push("brown").text, "br");
  EXPECT_EQ(matcher.Push(" dog").text, "own dog");
  EXPECT_EQ(matcher.Push(" ow").text, " ");
  EXPECT_EQ(matcher.Finish(), "ow");
}

TEST(StopMatcherTest, StopInsideAMultiByteToken) {
  EXPECT_EQ(Feed({"\xE4\xBA\x8C"}, false, {"\xE4\xB8\x80\xE4\xBA\x8C\xE4\xB8\x89"}).text,
            "\xE4\xB8\x80");
  // Shares its first two bytes with the text: what is shown is always whole characters.
  StopMatcher matcher(Stops({"\xE4\xB8\x81x"}), false);
  EXPECT_EQ(matcher.Push("\xE4\xB8\x80").text, "\xE4\xB8\x80");
  EXPECT_EQ(matcher.Push("\xE4\xB8\x81").text, "");
  EXPECT_EQ(matcher.Finish(), "\xE4\xB8\x81");
}

TEST(StopMatcherTest, EarliestEndWinsThenTheLongest) {
  EXPECT_EQ(Feed({"abcd", "bc"}, false, {"xabcd"}), (Outcome{"xa", 1}));
  EXPECT_EQ(Feed({"c", "abc", "bc"}, false, {"xabc"}), (Outcome{"x", 1}));
  EXPECT_EQ(Feed({"bc", "bc"}, false, {"abc"}), (Outcome{"a", 0}));
  EXPECT_EQ(Feed({"aab"}, false, {"aaab"}), (Outcome{"a", 0}));
}

TEST(StopMatcherTest, DisabledTextPassesAndCannotBeginAMatch) {
  StopMatcher matcher(Stops({"ab"}), false);
  EXPECT_EQ(matcher.Push("ab a", false).text, "ab a");
  const auto next = matcher.Push("b-ab");
  EXPECT_EQ(next.text, "b-");
  EXPECT_EQ(next.matched, 0u);
}

TEST(StopMatcherTest, NoStopStrings) {
  StopMatcher empty(Stops({}), false);
  EXPECT_EQ(empty.Push("text").text, "text");
  StopMatcher none(nullptr, false);
  EXPECT_EQ(none.Push("text").text, "text");
  EXPECT_EQ(none.Finish(), "");
}

TEST(StopMatcherTest, Limits) {
  const auto code = [](const std::vector<std::string>& strings) {
    const auto stops = StopStrings::Make(strings);
    return stops.ok() ? std::string("ok") : stops.error().message();
  };
  EXPECT_EQ(code({"a", ""}), "stop string 1 is empty");
  EXPECT_EQ(code(std::vector<std::string>(64, "a")), "ok");
  EXPECT_NE(code(std::vector<std::string>(65, "a")), "ok");
  EXPECT_EQ(code({std::string(4096, 'a')}), "ok");
  EXPECT_NE(code({std::string(4097, 'a')}), "ok");
}

/// What the matcher promises, said plainly: try every end, then the longest string that ends there.
Outcome Slow(const std::vector<std::string>& strings, bool include, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < strings.size(); ++i) {
      const std::size_t size = strings[i].size();
      if (size <= end && text.compare(end - size, size, strings[i]) == 0 &&
          (!best.has_value() || size > strings[*best].size())) {
        best = i;
      }
    }
    if (best.has_value()) {
      return {text.substr(0, include ? end : end - strings[*best].size()), best};
    }
  }
  return {text, std::nullopt};
}

TEST(StopMatcherTest, EqualsThePlainSearchForAnyCuts) {
  std::mt19937 random(3);
  const auto word = [&](std::size_t longest) {
    std::string out;
    const std::size_t size = 1 + random() % longest;
    for (std::size_t i = 0; i < size; ++i) {
      out += "ab\xC3"[random() % 3];  // few letters: many overlaps; the matcher works on bytes
    }
    return out;
  };
  int matches = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> strings(1 + random() % 4);
    std::generate(strings.begin(), strings.end(), [&] { return word(6); });
    const std::string text = word(30);
    std::vector<std::string> deltas;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = random() % 5;
      deltas.push_back(text.substr(at, size));
      at += size;
    }
    const bool include = random() % 2 == 0;
    const Outcome want = Slow(strings, include, text);
    matches += want.matched.has_value() ? 1 : 0;
    ASSERT_EQ(Feed(strings, include, deltas), want) << text;
  }
  EXPECT_GT(matches, 5'000);
  EXPECT_LT(matches, 19'900);
}

}  // namespace
}  // namespace inferd::text
