// SPDX-License-Identifier: Apache-2.0
// A server whose model writes tool calls and reasoning in a dialect of the test's choice.
#pragma once

#include "protocol_fixture.h"
#include "text/dialect_parser.h"
#include "unit/text/dialect_samples.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

class DialectServerTest : public ProtocolServerTest {
 protected:
  static constexpr const char* kTemplate =
      "{{ bos_token }}{% if show_tools and tools %}{{ tools | tojson }}{% endif %}"
      "{% for m in messages %}<|user|>{{ m.role }}:{{ m.content }}"
      "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]"
      "{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}{{ tail }}";

  /// Names of dialects; `users`: dialects of the test's own.
  void StartWith(const std::string& calls,
                 const std::string& reasoning = "none",
                 std::string_view users = {},
                 const std::string& chat_template = kTemplate) {
    auto model = std::make_shared<ServedModel>(*TestModel());
    const auto table = text::DialectTable::Load(users);
    ASSERT_TRUE(table.ok()) << table.error().message();
    const auto dialect =
        table->Select("", calls.empty() ? "none" : calls, reasoning.empty() ? "none" : reasoning);
    ASSERT_TRUE(dialect.ok()) << dialect.error().message();
    model->dialect = *dialect;
    model->marker_tokens = text::MarkerTokens(*model->tokenizer, model->dialect);
    auto compiled = text::ChatTemplate::Compile(
        chat_template, {.bos = "<s>", .eos = "</s>", .pad = std::nullopt, .unk = std::nullopt});
    ASSERT_TRUE(compiled.ok());
    model->chat_template = *std::move(compiled);
    if (server_ != nullptr) {
      server_->Stop();
      server_.reset();
    }
    HttpOptions options;
    options.port = 0;
    options.access_log = false;
    auto started = Server::Start(options, model, &service_);
    ASSERT_TRUE(started.ok()) << started.error().message();
    server_ = *std::move(started);
    port_ = server_->port();
  }

  /// The body with these fields beside or instead of its own.
  static Json Over(Json body, const Json& fields) {
    body.update(fields.is_null() ? Json::object() : fields);
    return body;
  }

  void Says(const std::string& reply) { service_.SetScripts({WithEos(Bytes(reply))}); }

  /// Of the newest request.
  std::string Prompt() const {
    std::string text;
    const auto last = service_.last();
    EXPECT_TRUE(last.has_value());
    for (const std::int32_t id : last->prompt) {
      text += ByteTokenizer()->TokenBytes(id);
    }
    return text;
  }

  /// The newest request's constraint lets a reply be exactly this.
  bool MaySay(const std::string& reply) const {
    const auto last = service_.last();
    if (!last || last->constraint == nullptr) {
      return true;
    }
    const auto constraint = last->constraint->Clone();
    EXPECT_TRUE(constraint.ok());
    for (const std::int32_t id : Bytes(reply)) {
      if (!(*constraint)->Accept(id).ok()) {
        return false;
      }
    }
    std::vector<std::uint32_t> words(kVocab / 32 + 1);
    EXPECT_TRUE((*constraint)->FillMask(words).ok());
    return (words[kEos / 32] >> (kEos % 32) & 1U) != 0;
  }

  /// Refused with this `param`.
  void ExpectRefused(const std::string& path, const Json& body, const std::string& param) {
    const Reply reply = Ask("POST", path, body);
    EXPECT_EQ(reply.status, 400) << body << reply.body;
    EXPECT_NE(reply.body.find(param), std::string::npos) << body << reply.body;
  }
};

inline const std::string kHermesCall =
    "<tool_call>\n{\"name\": \"run\", \"arguments\": {\"code\": \"1\"}}\n</tool_call>";

}  // namespace inferd::api
