// SPDX-License-Identifier: Apache-2.0
#include "api/core/constraint.h"

#include "api/core/marker_endings.h"
#include "text/grammar_cache.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;
using text::GrammarKind;

/// Longest text from which ConstraintStart is found.
constexpr std::size_t kMaxStartBytes = 256;

class GrammarConstraint : public leader::TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<const text::Grammar> grammar,
                    std::shared_ptr<const text::Tokenizer> tokenizer,
                    ConstraintStart start,
                    std::shared_ptr<const MarkerEndings> endings)
      : grammar_(std::move(grammar)),
        tokenizer_(std::move(tokenizer)),
        start_(std::move(start)),
        endings_(std::move(endings)),
        holds_(start_.at_once()) {}

  Result<std::unique_ptr<TokenConstraint>> Clone() const override {
    auto clone = std::make_unique<GrammarConstraint>(grammar_, tokenizer_, start_, endings_);
    INFERD_ASSIGN(auto matcher, grammar_->NewMatcher());
    clone->matcher_.emplace(std::move(matcher));
    return std::unique_ptr<TokenConstraint>(std::move(clone));
  }

  Result<> FillMask(std::span<std::uint32_t> words) override {
    if (!holds_) {
      std::fill(words.begin(), words.end(), ~0U);
      if (endings_ != nullptr) {
        endings_->Forbid(tail_, words);
      }
      return {};
    }
    return matcher_->FillMask(words);
  }

  Result<> Accept(std::int32_t token) override {
    if (holds_) {
      return matcher_->Accept(token);
    }
    if (start_.after_token) {
      holds_ = token == *start_.after_token;
      return {};
    }
    tail_ += tokenizer_->TokenBytes(token);
    if (const std::size_t at = tail_.find(start_.after_text); at != std::string::npos) {
      holds_ = true;
      return matcher_->AcceptText(std::string_view(tail_).substr(at + start_.after_text.size()));
    }
    if (tail_.size() > kMaxStartBytes + start_.after_text.size()) {
      tail_.erase(0, tail_.size() - start_.after_text.size());
    }
    return {};
  }

 private:
  const std::shared_ptr<const text::Grammar> grammar_;
  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const ConstraintStart start_;
  const std::shared_ptr<const MarkerEndings> endings_;  // null: the grammar begins behind no text
  bool holds_;
  std::string tail_;                             // of the text before the start
  std::optional<text::GrammarMatcher> matcher_;  // only in clones
};

/// A grammar that a request asks for, and the field that does.
struct Wanted {
  std::string param;
  GrammarKind kind = GrammarKind::kJsonObject;
  std::string source;
};

/// The same thing under the names of several servers.
struct Alias {
  std::string_view name;
  GrammarKind kind;
};
constexpr Alias kAliases[] = {
    {"guided_json", GrammarKind::kJsonSchema},
    {"guided_regex", GrammarKind::kRegex},
    {"guided_choice", GrammarKind::kChoice},
    {"guided_grammar", GrammarKind::kGrammar},
    {"json_schema", GrammarKind::kJsonSchema},
    {"regex", GrammarKind::kRegex},
    {"ebnf", GrammarKind::kGrammar},
    {"grammar", GrammarKind::kGrammar},
    {"structural_tag", GrammarKind::kStructuralTag},
};
constexpr Alias kStructured[] = {
    {"json", GrammarKind::kJsonSchema},
    {"regex", GrammarKind::kRegex},
    {"choice", GrammarKind::kChoice},
    {"grammar", GrammarKind::kGrammar},
    {"structural_tag", GrammarKind::kStructuralTag},
};

/// The field's value as the source of its kind: text for regex and grammar; JSON, written out or as
/// a text, for the others.
Result<std::string> SourceOf(const Json& value,
                             GrammarKind kind,
                             const std::string& param,
                             Fault* fault) {
  const bool is_text = kind == GrammarKind::kRegex || kind == GrammarKind::kGrammar;
  const bool is_schema = kind == GrammarKind::kJsonSchema;
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (is_text) {
    return FieldError(fault, param, "{} must be a string, not {}", param, value.type_name());
  }
  const bool fits = kind == GrammarKind::kChoice
                        ? value.is_array()
                        : value.is_object() || (is_schema && value.is_boolean());
  if (!fits) {
    return FieldError(fault,
                      param,
                      "{} must be {}, not {}",
                      param,
                      kind == GrammarKind::kChoice ? "a list of strings" : "an object",
                      value.type_name());
  }
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<> AddWanted(const Json& value,
                   GrammarKind kind,
                   const std::string& param,
                   Fault* fault,
                   std::vector<Wanted>* wanted) {
  INFERD_ASSIGN(std::string source, SourceOf(value, kind, param, fault));
  wanted->push_back({param, kind, std::move(source)});
  return {};
}

Result<> AddResponseFormat(const Json& format, Fault* fault, std::vector<Wanted>* wanted) {
  if (!format.is_object()) {
    return FieldError(
        fault, "response_format", "response_format must be an object, not {}", format.type_name());
  }
  const Fields fields(format, fault, "response_format.");
  INFERD_ASSIGN(const auto type, fields.String("type"));
  if (type == "text") {
    return {};
  }
  if (type == "json_object") {
    wanted->push_back({"response_format", GrammarKind::kJsonObject, ""});
    return {};
  }
  if (type == "structural_tag") {
    return AddWanted(format, GrammarKind::kStructuralTag, "response_format", fault, wanted);
  }
  if (type != "json_schema") {
    return FieldError(
        fault,
        "response_format.type",
        "response_format.type must be text, json_object, json_schema or structural_tag");
  }
  const Json* const described = fields.Find("json_schema");
  if (described == nullptr || !described->is_object()) {
    return FieldError(
        fault, "response_format.json_schema", "response_format.json_schema must be an object");
  }
  const Fields inner(*described, fault, "response_format.json_schema.");
  INFERD_TRY(inner.String("name"));
  INFERD_TRY(inner.Bool("strict"));  // Enforced either way.
  const Json* const schema = inner.Find("schema");
  const std::string param = inner.Path("schema");
  if (schema == nullptr) {
    return FieldError(fault, param, "{} is missing", param);
  }
  return AddWanted(*schema, GrammarKind::kJsonSchema, param, fault, wanted);
}

Result<> AddStructuredOutputs(const Json& value, Fault* fault, std::vector<Wanted>* wanted) {
  if (!value.is_object()) {
    return FieldError(fault,
                      "structured_outputs",
                      "structured_outputs must be an object, not {}",
                      value.type_name());
  }
  const Fields fields(value, fault, "structured_outputs.");
  for (const Alias& alias : kStructured) {
    if (const Json* const source = fields.Find(alias.name)) {
      INFERD_TRY(AddWanted(*source, alias.kind, fields.Path(alias.name), fault, wanted));
    }
  }
  INFERD_ASSIGN(const bool json_object, fields.BoolOr("json_object", false));
  if (json_object) {
    wanted->push_back({fields.Path("json_object"), GrammarKind::kJsonObject, ""});
  }
  for (const char* name : {"whitespace_pattern", "disable_any_whitespace"}) {
    const Json* const option = fields.Find(name);
    if (option != nullptr && *option != false) {
      return NotSupportedYet(fault, fields.Path(name));
    }
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const text::Grammar>> CompileGrammar(const ServerContext& context,
                                                            GrammarKind kind,
                                                            std::string_view source,
                                                            const std::string& param,
                                                            Fault* fault) {
  auto grammar = context.model.grammars->Get(kind, source);
  if (!grammar.ok()) {
    fault->param = param;
    fault->code = "invalid_value";
    return grammar.error().WithContext(param);
  }
  return grammar;
}

Result<std::shared_ptr<const text::Grammar>> ParseGrammar(const ServerContext& context,
                                                          const Fields& fields) {
  Fault* const fault = fields.fault();
  std::vector<Wanted> wanted;
  if (const Json* const format = fields.Find("response_format")) {
    INFERD_TRY(AddResponseFormat(*format, fault, &wanted));
  }
  if (const Json* const structured = fields.Find("structured_outputs")) {
    INFERD_TRY(AddStructuredOutputs(*structured, fault, &wanted));
  }
  for (const Alias& alias : kAliases) {
    if (const Json* const source = fields.Find(alias.name)) {
      INFERD_TRY(AddWanted(*source, alias.kind, std::string(alias.name), fault, &wanted));
    }
  }
  if (wanted.empty()) {
    return std::shared_ptr<const text::Grammar>();
  }
  if (wanted.size() > 1) {
    return FieldError(fault,
                      wanted[1].param,
                      "{} and {} both constrain the output; give one",
                      wanted[0].param,
                      wanted[1].param);
  }
  return CompileGrammar(context, wanted[0].kind, wanted[0].source, wanted[0].param, fault);
}

Result<std::shared_ptr<const text::Grammar>> ReadFormat(const ServerContext& context,
                                                        const Json& format,
                                                        const std::string& path,
                                                        Fault* fault) {
  if (!format.is_object()) {
    return FieldError(fault, path, "{} must be an object, not {}", path, format.type_name());
  }
  const Fields fields(format, fault, path + ".");
  INFERD_ASSIGN(const std::string type, fields.NeededString("type"));
  INFERD_TRY(fields.String("name"));
  INFERD_TRY(fields.Bool("strict"));  // Enforced either way.
  if (type == "text") {
    return std::shared_ptr<const text::Grammar>();
  }
  if (type == "json_object") {
    return CompileGrammar(context, GrammarKind::kJsonObject, "", path, fault);
  }
  const std::string param = fields.Path(type == "json_schema" ? "schema" : "type");
  if (type != "json_schema") {
    return FieldError(fault, param, "{} must be text, json_object or json_schema", param);
  }
  const Json* const schema = fields.Find("schema");
  if (schema == nullptr) {
    return FieldError(fault, param, "{} is missing", param);
  }
  INFERD_ASSIGN(const std::string source,
                SourceOf(*schema, GrammarKind::kJsonSchema, param, fault));
  return CompileGrammar(context, GrammarKind::kJsonSchema, source, param, fault);
}

std::shared_ptr<const leader::TokenConstraint> MakeConstraint(
    std::shared_ptr<const text::Grammar> grammar,
    std::shared_ptr<const text::Tokenizer> tokenizer,
    ConstraintStart start) {
  std::shared_ptr<const MarkerEndings> endings;
  if (!start.after_text.empty()) {
    endings = std::make_shared<MarkerEndings>(*tokenizer, start.after_text, *grammar);
  }
  return std::make_shared<GrammarConstraint>(
      std::move(grammar), std::move(tokenizer), std::move(start), std::move(endings));
}

}  // namespace inferd::api
