// SPDX-License-Identifier: Apache-2.0
#include "api/grpc/otlp_span.h"

#include "api/core/error_map.h"

#include <algorithm>
#include <cstddef>
#include <string>

namespace inferd::api {
namespace {

constexpr int kServer = 2;
constexpr int kFailed = 2;
constexpr std::size_t kTraceBytes = 16;
constexpr std::size_t kSpanBytes = 8;
constexpr std::size_t kTraceAt = 3;  // in 00-TRACE-PARENT-FLAGS
constexpr std::size_t kParentAt = 36;
constexpr std::size_t kFlagsAt = 53;
constexpr std::size_t kMaxParamBytes = 64;

std::string BytesOf(std::string_view hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1])));
  }
  return bytes;
}

/// gen_ai.operation.name.
std::string_view OperationOf(std::string_view path) {
  const auto has = [path](std::string_view word) { return path.contains(word); };
  if (has("embeddings") || has("score") || has("rerank")) {
    return "embeddings";
  }
  if (has("chat") || has("Chat") || has("messages") || has("responses")) {
    return "chat";
  }
  return has("completions") || has("Completion") ? "text_completion" : "generate_content";
}

class Attributes {
 public:
  explicit Attributes(otlp::Span* span) : span_(span) {}

  void Text(const char* key, std::string_view value) {
    if (!value.empty()) {
      Add(key)->set_string_value(std::string(value));
    }
  }
  void Int(const char* key, std::int64_t value) { Add(key)->set_int_value(value); }
  void Real(const char* key, double value) { Add(key)->set_double_value(value); }
  void Seconds(const char* key, std::int64_t ns) {
    if (ns >= 0) {
      Real(key, static_cast<double>(ns) * 1e-9);
    }
  }
  otlp::AnyValue* Add(const char* key) {
    otlp::KeyValue* const attribute = span_->add_attributes();
    attribute->set_key(key);
    return attribute->mutable_value();
  }

 private:
  otlp::Span* span_;
};

void AddLatencies(const RequestSpan& span, Attributes* out) {
  const auto between = [](std::int64_t from, std::int64_t to) {
    return from >= 0 && to >= 0 ? to - from : -1;
  };
  out->Seconds("gen_ai.latency.time_in_queue", span.queue_ns);
  out->Seconds("gen_ai.latency.time_to_first_token", span.first_token_ns);
  out->Seconds("gen_ai.latency.e2e", span.total_ns);
  out->Seconds("gen_ai.latency.time_in_model_prefill", between(span.queue_ns, span.first_token_ns));
  out->Seconds("gen_ai.latency.time_in_model_decode", between(span.first_token_ns, span.total_ns));
  out->Seconds("gen_ai.latency.time_in_model_inference", between(span.queue_ns, span.total_ns));
}

void AddUsage(const RequestSpan& span, Attributes* out) {
  out->Int("gen_ai.usage.input_tokens", span.input_tokens);
  out->Int("gen_ai.usage.output_tokens", span.output_tokens);
  out->Int("gen_ai.usage.cache_read.input_tokens", span.cached_tokens);
  out->Int("gen_ai.usage.reasoning.output_tokens", span.reasoning_tokens);
  out->Int("gen_ai.usage.prompt_tokens", span.input_tokens);       // as vLLM calls it
  out->Int("gen_ai.usage.completion_tokens", span.output_tokens);  // as vLLM calls it
}

void AddRequest(const RequestSpan& span, Attributes* out) {
  out->Text("gen_ai.operation.name", OperationOf(span.operation));
  out->Text("gen_ai.provider.name", "inferd");
  out->Text("gen_ai.request.model", span.model);
  out->Text("gen_ai.response.model", span.model);
  out->Text("gen_ai.response.id", span.reply_id);
  out->Text("gen_ai.request.id", span.request_id);
  out->Int("gen_ai.request.n", span.n);  // as vLLM calls it
  if (span.n > 1) {
    out->Int("gen_ai.request.choice.count", span.n);
  }
  if (span.max_tokens >= 0) {
    out->Int("gen_ai.request.max_tokens", span.max_tokens);
  }
  if (span.temperature >= 0) {
    out->Real("gen_ai.request.temperature", span.temperature);
  }
  if (span.top_p >= 0) {
    out->Real("gen_ai.request.top_p", span.top_p);
  }
  if (!span.finish_reasons.empty()) {
    otlp::ArrayValue* const reasons =
        out->Add("gen_ai.response.finish_reasons")->mutable_array_value();
    for (const std::string& reason : span.finish_reasons) {
      reasons->add_values()->set_string_value(reason);
    }
  }
}

/// The caller may have chosen a part of the path.
bool IsFieldName(std::string_view param) {
  return !param.empty() && param.size() <= kMaxParamBytes &&
         std::all_of(param.begin(), param.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  std::string_view("_-.[]").contains(c);
         });
}

/// Of the error only its type and place: messages quote what the caller has sent.
std::string StatusMessage(const RequestSpan& span) {
  std::string message(StatusOf(span.error->code()).type);
  if (IsFieldName(span.error_param)) {
    message += ": " + span.error_param;
  }
  return message;
}

}  // namespace

void FillSpan(const RequestSpan& span, std::string_view random, otlp::Span* out) {
  if (span.traceparent.empty()) {
    out->set_trace_id(std::string(random.substr(0, kTraceBytes)));
    out->set_flags(1);
  } else {
    const std::string_view parent = span.traceparent;
    out->set_trace_id(BytesOf(parent.substr(kTraceAt, 2 * kTraceBytes)));
    out->set_parent_span_id(BytesOf(parent.substr(kParentAt, 2 * kSpanBytes)));
    out->set_flags(static_cast<unsigned char>(BytesOf(parent.substr(kFlagsAt, 2)).at(0)));
  }
  out->set_span_id(std::string(random.substr(kTraceBytes, kSpanBytes)));
  out->set_name(std::string(OperationOf(span.operation)) +
                (span.model.empty() ? "" : " " + span.model));
  out->set_kind(kServer);
  out->set_start_time_unix_nano(static_cast<std::uint64_t>(span.began_unix_ns));
  out->set_end_time_unix_nano(static_cast<std::uint64_t>(span.ended_unix_ns));
  Attributes attributes(out);
  AddRequest(span, &attributes);
  AddUsage(span, &attributes);
  AddLatencies(span, &attributes);
  if (span.error) {
    attributes.Text("error.type", StatusOf(span.error->code()).type);
    out->mutable_status()->set_code(kFailed);
    out->mutable_status()->set_message(StatusMessage(span));
  }
}

void FillResource(std::string_view service,
                  std::string_view version,
                  std::string_view instance,
                  otlp::Resource* out) {
  const auto add = [out](const char* key, std::string_view value) {
    otlp::KeyValue* const attribute = out->add_attributes();
    attribute->set_key(key);
    attribute->mutable_value()->set_string_value(std::string(value));
  };
  add("service.name", service);
  add("service.version", version);
  add("service.instance.id", instance);
}

}  // namespace inferd::api
