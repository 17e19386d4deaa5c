// SPDX-License-Identifier: Apache-2.0
#include "api/http/http_parser.h"

#include "api/core/limits.h"

#include <gtest/gtest.h>

#include <string>

namespace inferd::api {
namespace {

constexpr std::size_t kMaxBody = 1000;
const std::string kPost = "POST /x HTTP/1.1\r\nHost: h\r\n";

struct Parsed {
  HttpParser::State state = HttpParser::State::kMore;
  int status = 0;
  std::string rest;
  HttpRequest request;
};

/// Feeds `bytes` in pieces of `step`.
Parsed Parse(const std::string& bytes, std::size_t step = std::string::npos) {
  HttpParser parser({kMaxBody});
  Parsed parsed;
  std::string in;
  std::size_t at = 0;
  while (parsed.state == HttpParser::State::kMore && at < bytes.size()) {
    const std::string piece = bytes.substr(at, step);
    at += piece.size();
    in += piece;
    std::size_t used = 0;
    parsed.state = parser.Feed(in, &used);
    in.erase(0, used);
  }
  parsed.rest = in + bytes.substr(at);
  if (parsed.state == HttpParser::State::kDone) {
    parsed.request = parser.Take();
  } else if (parsed.state == HttpParser::State::kBad) {
    parsed.status = parser.status();
    EXPECT_FALSE(parser.reason().empty());
  }
  return parsed;
}

TEST(HttpParser, TakesARequestInPiecesOfAnySize) {
  const std::string bytes = kPost + "X-Request-Id: abc-1\r\nContent-Length: 5\r\n\r\nhello";
  for (const std::size_t step :
       {std::size_t{1}, std::size_t{2}, std::size_t{7}, std::string::npos}) {
    const Parsed parsed = Parse(bytes, step);
    ASSERT_EQ(parsed.state, HttpParser::State::kDone) << step;
    EXPECT_EQ(parsed.request.method, "POST");
    EXPECT_EQ(parsed.request.path, "/x");
    EXPECT_EQ(parsed.request.body, "hello");
    EXPECT_EQ(parsed.request.host, "h");
    EXPECT_EQ(parsed.request.request_id, "abc-1");
    EXPECT_TRUE(parsed.request.keep_alive);
    EXPECT_EQ(parsed.rest, "");
  }
}

TEST(HttpParser, LeavesThePipelinedRestAlone) {
  const Parsed parsed = Parse(kPost + "Content-Length: 2\r\n\r\nabGET / HTTP/1.1\r\n");
  ASSERT_EQ(parsed.state, HttpParser::State::kDone);
  EXPECT_EQ(parsed.request.body, "ab");
  EXPECT_EQ(parsed.rest, "GET / HTTP/1.1\r\n");
}

TEST(HttpParser, TakesChunksWithExtensionsAndTrailers) {
  const std::string bytes =
      kPost +
      "Transfer-Encoding: chunked\r\n\r\n1;a=b\r\nh\r\n4\r\nello\r\n0\r\nX-Trailer: 1\r\n\r\nnext";
  for (const std::size_t step : {std::size_t{1}, std::string::npos}) {
    const Parsed parsed = Parse(bytes, step);
    ASSERT_EQ(parsed.state, HttpParser::State::kDone) << step;
    EXPECT_EQ(parsed.request.body, "hello");
    EXPECT_EQ(parsed.rest, "next");
  }
}

TEST(HttpParser, SplitsTheTarget) {
  EXPECT_EQ(Parse("GET /a%2Fb/?q=1?2 HTTP/1.1\r\nHost: h\r\n\r\n").request.path, "/a%2Fb/");
  EXPECT_EQ(Parse("GET /a?q=1?2 HTTP/1.1\r\nHost: h\r\n\r\n").request.query, "q=1?2");
  EXPECT_EQ(Parse("GET http://other/a HTTP/1.1\r\nHost: h\r\n\r\n").request.path, "/a");
  EXPECT_EQ(Parse("GET //a HTTP/1.1\r\nHost: h\r\n\r\n").request.path, "//a");
}

TEST(HttpParser, KnowsWhenAConnectionEnds) {
  EXPECT_FALSE(Parse("GET / HTTP/1.0\r\n\r\n").request.keep_alive);
  EXPECT_TRUE(Parse("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").request.keep_alive);
  EXPECT_FALSE(Parse("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").request.keep_alive);
}

TEST(HttpParser, DropsARequestIdThatCouldSplitAHeader) {
  EXPECT_EQ(Parse("GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: a b\r\n\r\n").request.request_id, "");
  EXPECT_EQ(
      Parse("GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: " + std::string(129, 'a') + "\r\n\r\n")
          .request.request_id,
      "");
}

struct Malformed {
  std::string name;
  std::string bytes;
  int status;
};

class Corpus : public testing::TestWithParam<Malformed> {};

TEST_P(Corpus, IsRefusedWholeAndByteByByte) {
  for (const std::size_t step : {std::string::npos, std::size_t{1}}) {
    const Parsed parsed = Parse(GetParam().bytes, step);
    EXPECT_EQ(parsed.state, HttpParser::State::kBad) << GetParam().name << " step " << step;
    EXPECT_EQ(parsed.status, GetParam().status) << GetParam().name << " step " << step;
  }
}

std::string Fields(std::size_t count) {
  std::string fields;
  for (std::size_t i = 0; i < count; ++i) {
    fields += "A" + std::to_string(i) + ": b\r\n";
  }
  return fields;
}

const std::string kChunked = kPost + "Transfer-Encoding: chunked\r\n\r\n";

INSTANTIATE_TEST_SUITE_P(
    Framing,
    Corpus,
    testing::Values(
        Malformed{"both framings",
                  kPost + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                  400},
        Malformed{"both framings, other order",
                  kPost + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
                  400},
        Malformed{
            "two lengths, alike", kPost + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
        Malformed{"two lengths", kPost + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
        Malformed{"length list", kPost + "Content-Length: 3, 3\r\n\r\nabc", 400},
        Malformed{"negative length", kPost + "Content-Length: -1\r\n\r\n", 400},
        Malformed{"signed length", kPost + "Content-Length: +5\r\n\r\nhello", 400},
        Malformed{
            "length overflow", kPost + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
        Malformed{"hex length", kPost + "Content-Length: 0x5\r\n\r\nhello", 400},
        Malformed{"length too large", kPost + "Content-Length: 1001\r\n\r\n", 413},
        Malformed{"no length", kPost + "\r\n", 411},
        Malformed{"coding gzip", kPost + "Transfer-Encoding: gzip\r\n\r\nx", 400},
        Malformed{"coding xchunked", kPost + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400},
        Malformed{
            "coding twice", kPost + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400},
        Malformed{
            "two coding fields",
            kPost + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400},
        Malformed{"coding identity", kPost + "Transfer-Encoding: identity\r\n\r\n", 400},
        Malformed{"coding in 1.0",
                  "POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                  400},
        Malformed{
            "body compressed", kPost + "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 415},
        Malformed{"other expectation", kPost + "Expect: tea\r\nContent-Length: 1\r\n\r\nx", 417}));

INSTANTIATE_TEST_SUITE_P(
    Chunks,
    Corpus,
    testing::Values(Malformed{"size not hex", kChunked + "zz\r\n", 400},
                    Malformed{"size negative", kChunked + "-1\r\nx\r\n", 400},
                    Malformed{"size signed", kChunked + "+1\r\nx\r\n0\r\n\r\n", 400},
                    Malformed{"size 0x", kChunked + "0x1\r\nx\r\n0\r\n\r\n", 400},
                    Malformed{"size overflow", kChunked + "fffffffffffffffff\r\n", 400},
                    Malformed{"size with leading blank", kChunked + " 1\r\nx\r\n0\r\n\r\n", 400},
                    Malformed{"size too large", kChunked + "fffffffffffffff\r\n", 413},
                    Malformed{"sum too large",
                              kChunked + "1f4\r\n" + std::string(500, 'x') + "\r\n1f5\r\n" +
                                  std::string(501, 'x') + "\r\n",
                              413},
                    Malformed{"no line break after data", kChunked + "1\r\nxy\r\n0\r\n\r\n", 400},
                    Malformed{"endless extension", kChunked + "1;" + std::string(10'000, 'a'), 400},
                    Malformed{
                        "endless trailer", kChunked + "0\r\nA: " + std::string(10'000, 'a'), 400}));

INSTANTIATE_TEST_SUITE_P(
    Heads,
    Corpus,
    testing::Values(
        Malformed{"bare LF", "GET / HTTP/1.1\nHost: h\n\n", 400},
        Malformed{"bare LF in one line", "GET / HTTP/1.1\r\nHost: h\nA: b\r\n\r\n", 400},
        Malformed{"lone CR", "GET / HTTP/1.1\r\nHost: h\r\nA: b\rc\r\n\r\n", 400},
        Malformed{"folded line", "GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n", 400},
        Malformed{"folded line, tab", "GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n\tc\r\n\r\n", 400},
        Malformed{"blank before colon", "GET / HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n", 400},
        Malformed{"no colon", "GET / HTTP/1.1\r\nHost: h\r\nAb\r\n\r\n", 400},
        Malformed{"empty name", "GET / HTTP/1.1\r\nHost: h\r\n: b\r\n\r\n", 400},
        Malformed{
            "NUL", std::string("GET / HTTP/1.1\r\nHost: h\r\nA: b") + '\0' + "c\r\n\r\n", 400},
        Malformed{"no host", "GET / HTTP/1.1\r\n\r\n", 400},
        Malformed{"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
        Malformed{"host with path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
        Malformed{"host with user", "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400},
        Malformed{"host with query", "GET / HTTP/1.1\r\nHost: a?b\r\n\r\n", 400},
        Malformed{"host with bad port", "GET / HTTP/1.1\r\nHost: a:8x\r\n\r\n", 400},
        Malformed{"version 1.9", "GET / HTTP/1.9\r\nHost: h\r\n\r\n", 400},
        Malformed{"version 2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
        Malformed{"no version", "GET /\r\n\r\n", 400},
        Malformed{"target no path", "GET x HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        Malformed{"TLS hello", std::string("\x16\x03\x01\x02\x00\x01", 6), 400},
        Malformed{"empty first line", "\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        Malformed{"long line", "GET / HTTP/1.1\r\nHost: h\r\nA: " + std::string(8300, 'x'), 431},
        Malformed{"long target", "GET /" + std::string(8300, 'x'), 431},
        Malformed{"many fields", "GET / HTTP/1.1\r\nHost: h\r\n" + Fields(100), 431},
        Malformed{"large head",
                  "GET / HTTP/1.1\r\nHost: h\r\n" +
                      [] {
                        std::string fields;
                        for (int i = 0; i < 5; ++i) {
                          fields +=
                              "A" + std::to_string(i) + ": " + std::string(8000, 'x') + "\r\n";
                        }
                        return fields;
                      }(),
                  431}));

TEST(HttpParser, TakesExactlyTheFieldsAllowed) {
  EXPECT_EQ(Parse("GET / HTTP/1.1\r\nHost: h\r\n" + Fields(99) + "\r\n").state,
            HttpParser::State::kDone);
}

TEST(HttpParser, AMillionTinyChunksStayWithinTheLimit) {
  HttpParser parser({1U << 20});
  std::size_t used = 0;
  ASSERT_EQ(parser.Feed(kChunked, &used), HttpParser::State::kMore);
  std::string block;
  for (int i = 0; i < 1000; ++i) {
    block += "1\r\nx\r\n";
  }
  std::string in;
  for (int i = 0; i < 1000; ++i) {
    in += block;
    ASSERT_EQ(parser.Feed(in, &used), HttpParser::State::kMore);
    in.erase(0, used);
    ASSERT_LT(in.size(), 10U);
  }
  ASSERT_EQ(parser.Feed(in + "0\r\n\r\n", &used), HttpParser::State::kDone);
  EXPECT_EQ(parser.Take().body.size(), 1'000'000U);
}

TEST(HttpParser, AsksForTheBodyOnce) {
  HttpParser parser({kMaxBody});
  std::size_t used = 0;
  ASSERT_EQ(parser.Feed(kPost + "Expect: 100-continue\r\nContent-Length: 1\r\n\r\n", &used),
            HttpParser::State::kMore);
  EXPECT_TRUE(parser.TakeContinue());
  EXPECT_FALSE(parser.TakeContinue());
}

}  // namespace
}  // namespace inferd::api
