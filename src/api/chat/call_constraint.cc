// SPDX-License-Identifier: Apache-2.0
#include "api/chat/call_constraint.h"

#include "api/core/constraint.h"
#include "text/call_grammar.h"
#include "text/white_space.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;
using Constraint = std::shared_ptr<const leader::TokenConstraint>;

/// The schema of tool `i`, checked and respelled; empty: any object.
Result<std::string> SchemaOf(const ChatTools& tools, std::size_t i, Fault* fault) {
  const Json& function = tools.list[i]["function"];
  const auto parameters = function.find("parameters");
  if (parameters == function.end() || parameters->is_null()) {
    return std::string();
  }
  Json schema = *parameters;
  schema["type"] = "object";  // arguments are one, whether or not the schema says so
  const std::string_view wrapper = tools.form.wrapper;
  const std::string pointer =
      fmt::format("/tools/{}/{}{}{}", i, wrapper, wrapper.empty() ? "" : "/", tools.form.schema);
  auto prepared = text::PrepareJsonSchema(schema.dump(), pointer);
  if (!prepared.ok()) {
    *fault = {ToolPath(tools, i, tools.form.schema), "invalid_value"};
  }
  return prepared;
}

/// The tools that may be called, with the schemas that hold.
Result<std::vector<text::ToolGrammar>> CallableTools(const ChatTools& tools,
                                                     bool forced,
                                                     Fault* fault) {
  std::vector<text::ToolGrammar> callable;
  for (std::size_t i = 0; i < tools.shapes.size(); ++i) {
    if (tools.choice == ToolChoice::kNamed && tools.shapes[i].name != tools.named) {
      continue;
    }
    std::string schema;
    if (forced || tools.strict[i]) {
      INFERD_ASSIGN(schema, SchemaOf(tools, i, fault));
    }
    callable.push_back({tools.shapes[i].name, std::move(schema)});
  }
  return callable;
}

/// Behind the first `marker`: one control token, or text.
ConstraintStart StartAfter(const text::Tokenizer& tokenizer, std::string_view marker) {
  const auto id = tokenizer.TokenToId(marker);
  if (id && tokenizer.IsSpecial(*id)) {
    return {.after_token = *id, .after_text = {}};
  }
  return {.after_token = std::nullopt, .after_text = std::string(marker)};
}

/// What strict tools promise is kept, or they are refused.
Result<> CheckStrict(const text::CallDialect& dialect,
                     const ChatTools& tools,
                     bool forced,
                     Fault* fault) {
  const bool has_marker = !dialect.bare && dialect.format != text::CallFormat::kChannels;
  for (std::size_t i = 0; i < tools.strict.size(); ++i) {
    if (!tools.strict[i]) {
      continue;
    }
    if (!forced && !has_marker) {
      *fault = {ToolPath(tools, i, "strict"), "unsupported_parameter"};
      return Unimplemented(
          "{} is not supported with tool_choice auto and this model's way of writing calls ({})",
          fault->param,
          dialect.name);
    }
    INFERD_ASSIGN(const std::string schema, SchemaOf(tools, i, fault));
    auto holds = text::CheckSchemaHolds(dialect, schema);
    if (!holds.ok()) {
      *fault = {ToolPath(tools, i, tools.form.schema), "invalid_value"};
      return holds.error().WithContext(fault->param);
    }
  }
  return {};
}

}  // namespace

ConstraintStart AfterReasoning(const ServedModel& model) {
  return model.dialect.reasoning == nullptr || model.dialect.channels()
             ? ConstraintStart()
             : StartAfter(*model.tokenizer, text::Trim(model.dialect.reasoning->end));
}

Result<Constraint> ConstrainCalls(const ServerContext& context,
                                  const ChatTools& tools,
                                  bool in_reasoning,
                                  Fault* fault) {
  const bool forced = tools.choice == ToolChoice::kRequired || tools.choice == ToolChoice::kNamed;
  if (!tools.offered() ||
      (!forced && std::ranges::find(tools.strict, true) == tools.strict.end())) {
    return Constraint();
  }
  const ServedModel& model = context.model;
  const text::CallDialect& dialect = *model.dialect.calls;
  INFERD_TRY(CheckStrict(dialect, tools, forced, fault));
  INFERD_ASSIGN(const auto callable, CallableTools(tools, forced, fault));
  INFERD_ASSIGN(const auto vocabulary, model.grammars->vocabulary());
  INFERD_ASSIGN(
      const std::string source,
      text::CallGrammar(
          *vocabulary, dialect, callable, {.one_call = tools.one_call(), .after_marker = !forced}));
  INFERD_ASSIGN(auto grammar,
                CompileGrammar(context, text::GrammarKind::kGrammar, source, "tools", fault));
  ConstraintStart start;
  if (!forced) {
    start = StartAfter(*model.tokenizer, text::FirstMarker(dialect));
  } else if (in_reasoning) {
    start = AfterReasoning(model);
  }
  return MakeConstraint(std::move(grammar), model.tokenizer, std::move(start));
}

}  // namespace inferd::api
