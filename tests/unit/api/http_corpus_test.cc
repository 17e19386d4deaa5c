// SPDX-License-Identifier: Apache-2.0
// tests/data/http/corpus.txt: byte streams with a fixed verdict each, through the parser alone and
// through a server, in several cuts; after each the server still answers another client.
#include "api/http/http_parser.h"
#include "base/file.h"
#include "server_fixture.h"

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace inferd::api {
namespace {

constexpr std::size_t kMaxBody = 1000;
constexpr std::size_t kMinStreams = 300;

struct Stream {
  std::string name;
  std::vector<int> statuses;  // 0: the connection ends without an answer
  std::string bytes;
};

/// Undoes the escapes that the head of the file explains.
std::string Unescape(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      bytes += text[i];
      continue;
    }
    switch (text[++i]) {
      case 'r':
        bytes += '\r';
        break;
      case 'n':
        bytes += '\n';
        break;
      case 't':
        bytes += '\t';
        break;
      case 'x':
        bytes += static_cast<char>(
            std::strtoul(std::string(text.substr(i + 1, 2)).c_str(), nullptr, 16));
        i += 2;
        break;
      case 'R': {
        const std::size_t end = text.find(')', i);
        const auto count = std::strtoul(std::string(text.substr(i + 2)).c_str(), nullptr, 10);
        bytes.append(count, text[end - 1]);
        i = end;
        break;
      }
      default:
        bytes += text[i];
    }
  }
  return bytes;
}

std::vector<Stream> ReadCorpus() {
  const auto text = base::ReadFile(std::string(INFERD_TEST_DATA) + "/http/corpus.txt", 1 << 20);
  EXPECT_TRUE(text.ok());
  std::vector<Stream> streams;
  for (std::size_t at = 0; text.ok() && at < text->size();) {
    const std::size_t end = std::min(text->find('\n', at), text->size());
    const std::string_view line = std::string_view(*text).substr(at, end - at);
    at = end + 1;
    if (line.empty() || line[0] == '#') {
      continue;
    }
    const std::size_t name = line.find(' ');
    const std::size_t verdict = line.find(' ', name + 1);
    Stream stream{std::string(line.substr(0, name)), {}, Unescape(line.substr(verdict + 1))};
    std::string statuses(line.substr(name + 1, verdict - name - 1));
    for (std::size_t i = 0; i < statuses.size();
         i = std::min(statuses.find(',', i), statuses.size() - 1) + 1) {
      stream.statuses.push_back(std::atoi(statuses.c_str() + i));
    }
    streams.push_back(std::move(stream));
  }
  return streams;
}

/// The framing refuses it; other statuses come from the endpoints.
bool IsRefusal(int status) { return status >= 400 && status != 404 && status != 405; }

/// Pieces of the stream: whole, byte by byte, or cut at two random places.
std::vector<std::string> Cut(const std::string& bytes, int how, std::mt19937* random) {
  std::vector<std::string> pieces;
  if (how == 0 || bytes.size() < 3) {
    return {bytes};
  }
  if (how == 1) {
    for (const char c : bytes) {
      pieces.emplace_back(1, c);
    }
    return pieces;
  }
  std::size_t first = 1 + (*random)() % (bytes.size() - 1);
  std::size_t second = 1 + (*random)() % (bytes.size() - 1);
  if (first > second) {
    std::swap(first, second);
  }
  return {bytes.substr(0, first), bytes.substr(first, second - first), bytes.substr(second)};
}

/// What the parser alone makes of it: 200 per request it takes, a status where it refuses, 0 where
/// it waits for more.
std::vector<int> ParseAll(const std::vector<std::string>& pieces) {
  std::vector<int> verdict;
  auto parser = std::make_unique<HttpParser>(BodyLimits{kMaxBody});
  std::string in;
  bool fresh = true;
  for (const std::string& piece : pieces) {
    in += piece;
    while (!in.empty()) {
      fresh = false;
      std::size_t used = 0;
      const auto state = parser->Feed(in, &used);
      in.erase(0, used);
      if (state == HttpParser::State::kBad) {
        verdict.push_back(parser->status());
        return verdict;
      }
      if (state == HttpParser::State::kMore) {
        break;
      }
      verdict.push_back(200);
      if (!parser->Take().keep_alive) {
        return verdict;
      }
      parser = std::make_unique<HttpParser>(BodyLimits{kMaxBody});
      fresh = true;
    }
  }
  if (!fresh || verdict.empty()) {
    verdict.push_back(0);
  }
  return verdict;
}

TEST(HttpCorpus, TheParserGivesTheVerdictHoweverTheStreamIsCut) {
  const auto streams = ReadCorpus();
  EXPECT_GE(streams.size(), kMinStreams);
  std::mt19937 random(1);
  for (const Stream& stream : streams) {
    std::vector<int> expected;
    for (const int status : stream.statuses) {
      expected.push_back(status == 0 || IsRefusal(status) ? status : 200);
    }
    for (int how = 0; how < 6; ++how) {
      EXPECT_EQ(ParseAll(Cut(stream.bytes, how, &random)), expected)
          << stream.name << ", cut " << how;
    }
  }
}

class HttpCorpusServer : public ServerTest {
 protected:
  void Run(const Stream& stream, const std::vector<std::string>& pieces) {
    HttpClient client(port_);
    for (const std::string& piece : pieces) {
      if (!client.Send(piece)) {
        break;  // refused before its end
      }
    }
    const bool cut_off = stream.statuses.back() == 0;
    for (const int expected : stream.statuses) {
      if (expected == 0) {
        client.EndInput();
        EXPECT_TRUE(client.AtEnd()) << stream.name << ": " << client.buffered();
        continue;
      }
      const Reply reply = client.Read(stream.bytes.starts_with("HEAD"));
      ASSERT_EQ(reply.status, expected) << stream.name;
      EXPECT_TRUE(reply.Has("x-request-id: ")) << stream.name;
      if (IsRefusal(expected)) {
        EXPECT_TRUE(reply.Has("connection: close\r\n")) << stream.name;
        EXPECT_TRUE(Json::accept(reply.body)) << stream.name;
      }
    }
    if (!cut_off) {
      client.EndInput();
      EXPECT_TRUE(client.AtEnd()) << stream.name << ": more was answered: " << client.buffered();
    }
    EXPECT_EQ(Get(port_, "/livez").status, 200) << "the server is gone after " << stream.name;
  }
};

TEST_F(HttpCorpusServer, AnswersAsTheVerdictSaysAndLivesOn) {
  HttpOptions options;
  options.max_body_bytes = kMaxBody;
  Start(options);
  std::mt19937 random(2);
  for (const Stream& stream : ReadCorpus()) {
    for (const int how : {0, 1, 2}) {
      if (how != 1 || stream.bytes.size() < 400) {
        Run(stream, Cut(stream.bytes, how, &random));
      }
      if (HasFatalFailure()) {
        return;
      }
    }
  }
  EXPECT_TRUE(Eventually([&] { return server_->metrics().connections_open.load() == 0; }));
}

// R20, R21: a million chunks of one byte take bounded memory, and what they add up to is limited.
TEST_F(HttpCorpusServer, AMillionTinyChunksAreLimitedByWhatTheyCarry) {
  HttpOptions options;
  options.max_body_bytes = 100'000;
  Start(options);
  HttpClient client(port_);
  client.Send("POST /tokenize HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  std::string chunks;
  for (int i = 0; i < 1000; ++i) {
    chunks += "1\r\nx\r\n";
  }
  for (int i = 0; i < 1000 && client.Send(chunks); ++i) {
  }
  EXPECT_EQ(client.Read().status, 413);
  EXPECT_EQ(Get(port_, "/livez").status, 200);
}

}  // namespace
}  // namespace inferd::api
