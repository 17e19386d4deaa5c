// SPDX-License-Identifier: Apache-2.0
// What a span tells of a request, and how it looks in OpenTelemetry's messages.
#include "api/core/request_span.h"

#include "api/core/error_map.h"
#include "api/grpc/otlp_exporter.h"
#include "api/grpc/otlp_span.h"
#include "base/error.h"
#include "grpc_fixture.h"
#include "inferd/v1/inference.grpc.pb.h"
#include "server_fixture.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace inferd::api {
namespace {

const std::string kTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const std::string kUnsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

class ListSink : public SpanSink {
 public:
  void Put(RequestSpan span) override {
    const std::lock_guard lock(mutex_);
    spans_.push_back(std::move(span));
  }
  std::uint64_t exported() const override { return 7; }
  std::uint64_t dropped() const override { return 3; }

  std::vector<RequestSpan> spans() const {
    const std::lock_guard lock(mutex_);
    return spans_;
  }
  /// Waits for so many.
  std::vector<RequestSpan> Wait(std::size_t count) const {
    EXPECT_TRUE(Eventually([&] { return spans().size() >= count; }));
    return spans();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<RequestSpan> spans_;
};

class SpanTest : public ServerTest {
 protected:
  void StartTraced() {
    HttpOptions options;
    options.spans = sink_;
    Start(options);
  }
  Reply Ask(const std::string& headers, const std::string& body) const {
    HttpClient client(port_);
    client.Send(PostBytes("/v1/chat/completions", body, headers));
    return client.Read();
  }

  std::shared_ptr<ListSink> sink_ = std::make_shared<ListSink>();
};

TEST_F(SpanTest, ARequestIsOneSpanWithWhatWasAskedAndUsed) {
  StartTraced();
  const std::string body =
      ChatWith(R"("max_tokens":9,"temperature":0.5,"top_p":0.25,"n":2,"stream":true)");
  EXPECT_EQ(Ask("X-Request-Id: mine\r\ntraceparent: " + kTrace + "\r\n", body).status, 200);
  const RequestSpan span = sink_->Wait(1).at(0);
  EXPECT_EQ(span.traceparent, kTrace);
  EXPECT_EQ(span.operation, "/v1/chat/completions");
  EXPECT_EQ(span.request_id, "mine");
  EXPECT_EQ(span.model, "test-model");
  EXPECT_EQ(span.temperature, 0.5);
  EXPECT_EQ(span.top_p, 0.25);
  EXPECT_EQ(span.max_tokens, 9);
  EXPECT_EQ(span.n, 2);
  EXPECT_GT(span.input_tokens, 0);
  EXPECT_GT(span.output_tokens, 0);
  EXPECT_EQ(span.finish_reasons, (std::vector<std::string>{"stop", "stop"}));
  EXPECT_FALSE(span.error);
  EXPECT_GE(span.first_token_ns, 0);
  EXPECT_GE(span.total_ns, span.first_token_ns);
  EXPECT_GE(span.ended_unix_ns - span.began_unix_ns, span.total_ns / 2);
  const std::string page = Get(port_, "/metrics").body;
  EXPECT_NE(page.find("inferd_trace_spans_exported_total{model_name=\"test-model\"} 7"), page.npos);
  EXPECT_NE(page.find("inferd_trace_spans_dropped_total{model_name=\"test-model\"} 3"), page.npos);
}

TEST_F(SpanTest, FailuresAreSpansAndUnsampledTracesAreNot) {
  StartTraced();
  EXPECT_EQ(Post(port_, "/v1/chat/completions", ChatWith(R"("temperature":-1)")).status, 400);
  EXPECT_EQ(sink_->Wait(1).at(0).error->code(), Code::kInvalidArgument);
  service_.FailNextSubmit(ResourceExhausted("full"), 2'000);
  EXPECT_EQ(Post(port_, "/v1/chat/completions", kChat).status, 429);
  EXPECT_EQ(sink_->Wait(2).at(1).error->code(), Code::kResourceExhausted);
  EXPECT_EQ(Ask("traceparent: " + kUnsampled + "\r\n", kChat).status, 200);
  EXPECT_EQ(Get(port_, "/v1/models").status, 200);
  EXPECT_EQ(Post(port_, "/v1/chat/completions", kChat).status, 200);
  EXPECT_EQ(sink_->Wait(3).size(), 3U) << "neither the unsampled one nor /v1/models";
  EXPECT_EQ(sink_->spans()[2].traceparent, "");
}

class GrpcSpanTest : public GrpcTest {};

TEST_F(GrpcSpanTest, ACallIsASpan) {
  const auto sink = std::make_shared<ListSink>();
  GrpcOptions options;
  options.spans = sink;
  StartServer(options);
  v1::ChatCompletionRequest request;
  auto* const message = request.add_messages();
  message->set_role("user");
  message->set_content("hi");
  v1::ChatCompletionResponse response;
  const auto context = CallContext();
  context->AddMetadata("traceparent", kTrace);
  const auto stub = v1::Inference::NewStub(channel_);
  EXPECT_TRUE(stub->ChatCompletion(context.get(), request, &response).ok());
  const RequestSpan span = sink->Wait(1).at(0);
  EXPECT_EQ(span.traceparent, kTrace);
  EXPECT_EQ(span.operation.substr(0, 5), "grpc:");
  EXPECT_GT(span.output_tokens, 0);
}

TEST(OtlpSpan, HasTheConventionsNamesAndVllms) {
  RequestSpan span;
  span.traceparent = kTrace;
  span.operation = "/v1/chat/completions";
  span.request_id = "mine";
  span.model = "toy";
  span.began_unix_ns = 1'000;
  span.ended_unix_ns = 5'000'001'000;
  span.temperature = 0.5;
  span.max_tokens = 9;
  span.n = 2;
  span.reply_id = "chatcmpl-1";
  span.finish_reasons = {"stop", "length"};
  span.input_tokens = 11;
  span.cached_tokens = 4;
  span.output_tokens = 6;
  span.queue_ns = 1'000'000'000;
  span.first_token_ns = 2'000'000'000;
  span.total_ns = 5'000'000'000;
  otlp::Span out;
  FillSpan(span, std::string(24, 'r'), &out);
  EXPECT_EQ(out.name(), "chat toy");
  EXPECT_EQ(out.kind(), 2);
  EXPECT_EQ(out.trace_id(),
            std::string("\x0a\xf7\x65\x19\x16\xcd\x43\xdd\x84\x48\xeb\x21\x1c\x80\x31\x9c"));
  EXPECT_EQ(out.parent_span_id(), "\xb7\xad\x6b\x71\x69\x20\x33\x31");
  EXPECT_EQ(out.span_id(), std::string(8, 'r'));
  EXPECT_EQ(out.flags(), 1U);
  EXPECT_EQ(out.status().code(), 0);
  std::map<std::string, otlp::AnyValue> values;
  for (const otlp::KeyValue& attribute : out.attributes()) {
    EXPECT_TRUE(values.emplace(attribute.key(), attribute.value()).second) << attribute.key();
  }
  EXPECT_EQ(values["gen_ai.operation.name"].string_value(), "chat");
  EXPECT_EQ(values["gen_ai.request.model"].string_value(), "toy");
  EXPECT_EQ(values["gen_ai.response.id"].string_value(), "chatcmpl-1");
  EXPECT_EQ(values["gen_ai.request.max_tokens"].int_value(), 9);
  EXPECT_EQ(values["gen_ai.request.choice.count"].int_value(), 2);
  EXPECT_EQ(values["gen_ai.request.temperature"].double_value(), 0.5);
  EXPECT_FALSE(values.contains("gen_ai.request.top_p"));
  EXPECT_EQ(values["gen_ai.usage.input_tokens"].int_value(), 11);
  EXPECT_EQ(values["gen_ai.usage.prompt_tokens"].int_value(), 11);
  EXPECT_EQ(values["gen_ai.usage.output_tokens"].int_value(), 6);
  EXPECT_EQ(values["gen_ai.usage.cache_read.input_tokens"].int_value(), 4);
  EXPECT_EQ(values["gen_ai.response.finish_reasons"].array_value().values(1).string_value(),
            "length");
  EXPECT_DOUBLE_EQ(values["gen_ai.latency.time_in_queue"].double_value(), 1);
  EXPECT_DOUBLE_EQ(values["gen_ai.latency.time_in_model_prefill"].double_value(), 1);
  EXPECT_DOUBLE_EQ(values["gen_ai.latency.time_in_model_decode"].double_value(), 3);
  EXPECT_DOUBLE_EQ(values["gen_ai.latency.e2e"].double_value(), 5);
  span.traceparent.clear();
  span.error = ResourceExhausted("full");
  otlp::Span failed;
  FillSpan(span, std::string(24, 'r'), &failed);
  EXPECT_EQ(failed.trace_id(), std::string(16, 'r'));
  EXPECT_EQ(failed.parent_span_id(), "");
  EXPECT_EQ(failed.status().code(), 2);
  EXPECT_EQ(failed.status().message(), StatusOf(Code::kResourceExhausted).type);
}

TEST(OtlpSpan, AStatusHoldsNothingThatTheCallerWrote) {
  RequestSpan span;
  span.error = InvalidArgument("role is '{}'", std::string("s\xc3\xa4").substr(0, 2));
  for (const auto& [param, shown] :
       std::map<std::string, std::string>{{"", ""},
                                          {"messages[0].role", ": messages[0].role"},
                                          {"a secret", ""},
                                          {"cut\xc3", ""},
                                          {std::string(65, 'a'), ""}}) {
    span.error_param = param;
    otlp::Span out;
    FillSpan(span, std::string(24, 'r'), &out);
    EXPECT_EQ(out.status().message(), "invalid_request_error" + shown);
    EXPECT_EQ(out.SerializeAsString().find("\xc3"), std::string::npos);
  }
}

TEST(OtlpExporter, StopEndsACallThatIsNotAnswered) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  OtlpOptions options;
  options.endpoint = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  options.period_ms = 1;
  options.call_deadline_ms = 60'000;
  options.stop_deadline_ms = 50;
  const auto exporter = OtlpExporter::Start(options);
  ASSERT_TRUE(exporter.ok());
  RequestSpan span;
  span.operation = "/v1/completions";
  (*exporter)->Put(span);
  const int client = ::accept(listener, nullptr, nullptr);  // the call is under way
  const auto began = std::chrono::steady_clock::now();
  (*exporter)->Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  EXPECT_EQ((*exporter)->dropped(), 1U);
  ::close(client);
  ::close(listener);
}

}  // namespace
}  // namespace inferd::api
