// SPDX-License-Identifier: Apache-2.0
// For tests of the protocols beside OpenAI's: calls a handler directly, feeds a reply format by
// hand, and takes event streams apart.
#pragma once

#include "api/http/endpoint.h"
#include "api/responses/response_store.h"
#include "fake_service.h"
#include "server_fixture.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace inferd::api {

/// An event of a stream with named events: "event: NAME\ndata: JSON\n\n".
struct NamedEvent {
  std::string name;
  nlohmann::json data;
};

inline std::vector<NamedEvent> NamedEvents(const std::string& stream) {
  std::vector<NamedEvent> events;
  std::size_t at = 0;
  while (at < stream.size()) {
    const std::size_t end = stream.find("\n\n", at);
    const std::size_t line = stream.find('\n', at);
    if (end == std::string::npos || !stream.substr(at).starts_with("event: ") || line >= end ||
        stream.compare(line + 1, 6, "data: ") != 0) {
      ADD_FAILURE() << "not an event: " << stream.substr(at);
      return events;
    }
    events.push_back({stream.substr(at + 7, line - at - 7),
                      nlohmann::json::parse(stream.substr(line + 7, end - line - 7))});
    EXPECT_EQ(events.back().name, events.back().data["type"]);
    at = end + 2;
  }
  return events;
}

inline std::vector<std::string> Names(const std::vector<NamedEvent>& events) {
  std::vector<std::string> names;
  for (const NamedEvent& event : events) {
    names.push_back(event.name);
  }
  return names;
}

/// What a client of Anthropic's API puts together from a stream's events.
inline nlohmann::json MessageFromEvents(const std::vector<NamedEvent>& events) {
  nlohmann::json message;
  std::string input;
  for (const auto& [name, data] : events) {
    if (name == "message_start") {
      message = data["message"];
    } else if (name == "content_block_start") {
      EXPECT_EQ(data["index"], message["content"].size());
      message["content"].push_back(data["content_block"]);
      input.clear();
    } else if (name == "content_block_delta") {
      nlohmann::json& block = message["content"].back();
      const nlohmann::json& delta = data["delta"];
      if (delta["type"] == "input_json_delta") {
        input += delta["partial_json"].get<std::string>();
      } else {
        const char* const key = delta["type"] == "text_delta" ? "text" : "thinking";
        block[key] = block[key].get<std::string>() + delta[key].get<std::string>();
      }
    } else if (name == "content_block_stop" && !input.empty()) {
      message["content"].back()["input"] = nlohmann::json::parse(input);
    } else if (name == "message_delta") {
      message.update(data["delta"]);
      message["usage"] = data["usage"];
    }
  }
  return message;
}

/// Puts the output of a response together from deltas alone, and checks each "done" against it.
inline nlohmann::json OutputFromDeltas(const std::vector<NamedEvent>& events) {
  nlohmann::json output = nlohmann::json::array();
  for (const auto& [name, data] : events) {
    if (name == "response.output_item.added") {
      EXPECT_EQ(data["output_index"], output.size());
      output.push_back(data["item"]);
    } else if (name == "response.content_part.added") {
      output.back()["content"].push_back(data["part"]);
    } else if (name.ends_with(".delta")) {
      EXPECT_EQ(data["item_id"], output.back()["id"]);
      nlohmann::json& text = name == "response.function_call_arguments.delta"
                                 ? output.back()["arguments"]
                                 : output.back()["content"][0]["text"];
      text = text.get<std::string>() + data["delta"].get<std::string>();
    } else if (name == "response.output_item.done") {
      output.back()["status"] = data["item"]["status"];
      EXPECT_EQ(output.back(), data["item"]);
    }
  }
  return output;
}

/// A piece of a reply that owns what it shows.
struct HandMadePiece {
  std::vector<text::OutputDelta> deltas;
  leader::FinishReason finish = leader::FinishReason::kNone;
  StopReason stop_reason;
  bool has_tool_calls = false;

  ReplyPiece View() const {
    ReplyPiece piece;
    piece.deltas = deltas;
    piece.finish = finish;
    piece.stop_reason = &stop_reason;
    piece.has_tool_calls = has_tool_calls;
    return piece;
  }
};

/// Reasoning, content and two calls, in pieces as a stream brings them.
inline std::vector<HandMadePiece> ThinkSayAndCallTwice() {
  using Kind = text::OutputDelta::Kind;
  std::vector<HandMadePiece> pieces(4);
  pieces[0].deltas = {{Kind::kReasoning, -1, "Let me"}};
  pieces[1].deltas = {{Kind::kReasoning, -1, " see."}, {Kind::kContent, -1, "Look"}};
  pieces[2].deltas = {{Kind::kContent, -1, "ing."},
                      {Kind::kToolCall, 0, "weather", "call_1"},
                      {Kind::kToolArguments, 0, R"({"city":)"}};
  pieces[3].deltas = {{Kind::kToolArguments, 0, R"("Bern"})"},
                      {Kind::kToolCall, 1, "clock", "call_2"}};
  pieces[3].finish = leader::FinishReason::kStop;
  pieces[3].has_tool_calls = true;
  return pieces;
}

/// The same as one piece, as a whole answer brings it.
inline HandMadePiece AllInOne(const std::vector<HandMadePiece>& pieces) {
  HandMadePiece all = pieces.back();
  all.deltas.clear();
  for (const HandMadePiece& piece : pieces) {
    for (const text::OutputDelta& delta : piece.deltas) {
      if (!all.deltas.empty() && delta.kind != text::OutputDelta::Kind::kToolCall &&
          all.deltas.back().kind == delta.kind && all.deltas.back().call == delta.call) {
        all.deltas.back().text += delta.text;
      } else {
        all.deltas.push_back(delta);
      }
    }
  }
  return all;
}

/// prompt 10 (4 of them cached), completion 7 (3 of them reasoning).
inline Usage SomeUsage() {
  Usage usage;
  usage.prompt_tokens = 10;
  usage.cached_tokens = 4;
  usage.completion_tokens = 7;
  usage.reasoning_tokens = 3;
  usage.prompt_ns = 1'000'000;
  usage.completion_ns = 2'000'000;
  return usage;
}

inline std::string StreamOf(ReplyFormat* format, const std::vector<HandMadePiece>& pieces) {
  std::string out;
  format->AppendStart(SomeUsage(), &out);
  format->AppendOpening({}, &out);
  for (const HandMadePiece& piece : pieces) {
    format->AppendPiece(piece.View(), &out);
  }
  format->AppendEnd(SomeUsage(), false, &out);
  return out;
}

inline nlohmann::json FullOf(ReplyFormat* format, const HandMadePiece& piece) {
  std::string out;
  const ReplyPiece view = piece.View();
  format->AppendFull({&view, 1}, SomeUsage(), &out);
  return nlohmann::json::parse(out);
}

class ProtocolTest : public testing::Test {
 protected:
  struct Answer {
    Result<Outcome> outcome = Outcome(HttpResponse());
    Fault fault;
    int status() const { return outcome.ok() ? 200 : StatusOf(outcome.error().code()).http_status; }
    std::string message() const { return outcome.ok() ? "" : outcome.error().message(); }
  };

  Answer Call(Handler handler,
              const nlohmann::json& body,
              const std::string& path_parameter = "",
              const std::string& query = "") {
    HttpRequest request;
    request.body = body.dump();
    request.path_parameter = path_parameter;
    request.query = query;
    ServerContext context{.model = *model_,
                          .service = service_,
                          .metrics = metrics_,
                          .responses = &store_,
                          .draining = false,
                          .arrived_ns = 1};
    Answer answer;
    answer.outcome = handler(context, request, &answer.fault);
    return answer;
  }

  /// The object of an answer that is there at once.
  static nlohmann::json Body(const Answer& answer) {
    EXPECT_TRUE(answer.outcome.ok()) << answer.message();
    return answer.outcome.ok() ? nlohmann::json::parse(std::get<HttpResponse>(*answer.outcome).body)
                               : nlohmann::json();
  }

  /// The one request an accepted call makes.
  static leader::GenerateRequest Made(const Answer& answer) {
    EXPECT_TRUE(answer.outcome.ok()) << answer.message();
    if (!answer.outcome.ok()) {
      return {};
    }
    auto requests = std::get<std::unique_ptr<Generation>>(*answer.outcome)->TakeRequests();
    EXPECT_EQ(requests.size(), 1U);
    return requests.empty() ? leader::GenerateRequest() : requests.front();
  }

  /// The text of the prompt that an accepted call makes.
  std::string Prompt(const Answer& answer) {
    return model_->tokenizer->Decode(Made(answer).prompt, false);
  }

  std::shared_ptr<const ServedModel> model_ = TestModel();
  FakeInferenceService service_;
  Metrics metrics_;
  ResponseStore store_{100, 1 << 20};
};

/// Sends requests to a server over loopback.
class ProtocolServerTest : public ServerTest {
 protected:
  Reply Ask(const std::string& method,
            const std::string& path,
            const nlohmann::json& body = nullptr,
            const std::string& headers = "") {
    HttpClient client(port_);
    Send(&client, method, path, body, headers);
    return client.Read();
  }
  static void Send(HttpClient* client,
                   const std::string& method,
                   const std::string& path,
                   const nlohmann::json& body = nullptr,
                   const std::string& headers = "") {
    const std::string text = body.is_null() ? "" : body.dump();
    client->Send(method + " " + path + " HTTP/1.1\r\nHost: a\r\n" + headers +
                 "Content-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text);
  }
};

}  // namespace inferd::api
