// SPDX-License-Identifier: Apache-2.0
#include "text/call_parameters.h"

#include "base/error.h"
#include "text/white_space.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>
#include <vector>

namespace inferd::text {
namespace {

using Json = nlohmann::ordered_json;

/// How the value of a parameter is written.
enum class Kind { kJson, kText, kChoice, kMixed };

struct Parameter {
  std::string key;
  Json schema;
  bool required = false;
};

bool IsText(const Json& value) { return value.is_string(); }

/// The schema that stands behind a reference, or the schema.
const Json& Behind(const Json& schema, const Json& root) {
  const auto reference = schema.find("$ref");
  const std::string_view prefix = "#/$defs/";
  if (reference == schema.end() || !reference->is_string() ||
      !reference->get_ref<const std::string&>().starts_with(prefix)) {
    return schema;
  }
  const auto definitions = root.find("$defs");
  const std::string name = reference->get<std::string>().substr(prefix.size());
  return definitions != root.end() && definitions->contains(name) ? (*definitions)[name] : schema;
}

/// Only what the type says, and it says that a text and what else may stand there.
bool IsSimpleMix(const Json& schema) {
  const auto simple = [](const Json& type) {
    return type == "string" || type == "null" || type == "number" || type == "boolean";
  };
  if (schema.size() != 1) {
    return false;
  }
  if (const auto type = schema.find("type"); type != schema.end() && type->is_array()) {
    return std::ranges::all_of(*type, simple);
  }
  const auto options = schema.find("anyOf");
  return options != schema.end() && options->is_array() &&
         std::ranges::all_of(*options, [&](const Json& option) {
           return option.is_object() && option.size() == 1 && option.contains("type") &&
                  simple(option["type"]);
         });
}

Kind KindOf(const Json& schema) {
  if (!schema.is_object()) {
    return Kind::kMixed;
  }
  if (const auto type = schema.find("type"); type != schema.end()) {
    const bool has_text =
        type->is_array() ? std::ranges::find(*type, "string") != type->end() : *type == "string";
    if (!has_text) {
      return Kind::kJson;
    }
    if (type->is_array() && type->size() > 1) {
      return Kind::kMixed;
    }
  }
  if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
    if (const auto value = schema.find("const"); value != schema.end() && !IsText(*value)) {
      return Kind::kMixed;
    }
    return std::ranges::all_of(*values, IsText)    ? Kind::kChoice
           : std::ranges::none_of(*values, IsText) ? Kind::kJson
                                                   : Kind::kMixed;
  }
  if (const auto value = schema.find("const"); value != schema.end()) {
    return IsText(*value) ? Kind::kChoice : Kind::kJson;
  }
  return schema.contains("type") ? Kind::kText : Kind::kMixed;
}

/// The text comes back as it is.
bool SurvivesTags(const CallDialect& dialect, const std::string& text) {
  return !text.empty() && text == Trim(text) &&
         text.find(Trim(dialect.value_end)) == std::string::npos;
}

std::vector<std::string> Choices(const Json& schema) {
  if (const auto value = schema.find("const"); value != schema.end() && IsText(*value)) {
    return {value->get<std::string>()};
  }
  if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
    return values->get<std::vector<std::string>>();
  }
  return {};
}

bool IsWord(std::string_view key) {
  return !key.empty() && std::ranges::all_of(key, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  });
}

/// A key that a reader finds again.
bool CanWriteKey(const CallDialect& dialect, const std::string& key) {
  return dialect.format == CallFormat::kPython
             ? IsWord(key)
             : !key.empty() && key == Trim(key) &&
                   key.find(Trim(dialect.key_end)) == std::string::npos;
}

Result<Json> Parse(std::string_view schema) {
  if (schema.empty()) {
    return Json{{"type", "object"}};
  }
  Json parsed = Json::parse(schema, nullptr, false);
  if (!parsed.is_object()) {
    return InvalidArgument("The schema of a call's arguments must be an object");
  }
  return parsed;
}

std::vector<Parameter> ParametersOf(const Json& root) {
  std::vector<Parameter> parameters;
  const Json required = root.value("required", Json::array());
  const auto needed = [&](const std::string& key) {
    return std::ranges::find(required, Json(key)) != required.end();
  };
  const Json properties = root.value("properties", Json::object());
  for (const auto& [key, schema] : properties.items()) {
    if (schema != false) {
      parameters.push_back({key, schema, needed(key)});
    }
  }
  for (const Json& key : required) {
    if (key.is_string() && !properties.contains(key.get<std::string>())) {
      parameters.push_back({key.get<std::string>(), Json(true), true});
    }
  }
  return parameters;
}

/// For %json: with what its references lead to.
std::string Embedded(const Json& schema, const Json& root) {
  Json whole = schema.is_object() ? schema : Json::object();
  for (const char* member : {"$defs", "x-guidance"}) {
    if (root.contains(member)) {
      whole[member] = root[member];
    }
  }
  return "%json " + whole.dump(-1, ' ', false, Json::error_handler_t::replace);
}

class Rules {
 public:
  Rules(const LarkWriter& writer, const CallDialect& dialect, std::string name, Json root)
      : writer_(writer), dialect_(dialect), name_(std::move(name)), root_(std::move(root)) {}

  Result<std::string> Write() {
    const std::vector<Parameter> parameters = ParametersOf(root_);
    if (parameters.empty() && root_.value("additionalProperties", Json(true)) == false) {
      return name_ + ": \"\"\n";
    }
    if (dialect_.format == CallFormat::kPython) {
      INFERD_TRY(parameters.empty() ? AnyKeywords() : Keywords(parameters));
    } else {
      INFERD_TRY(parameters.empty() ? AnyTags() : Tags(parameters));
    }
    return std::move(rules_);
  }

 private:
  std::string Part(std::size_t i, const char* what) const {
    return fmt::format("{}_{}{}", name_, what, i);
  }

  // ---- tags

  /// `first`: what stands before the value; the value; what ends it.
  Result<> AddTag(std::size_t i, const std::string& first, const Json& schema) {
    INFERD_ASSIGN(const std::string end, writer_.Text(dialect_.value_end));
    const std::string value = Part(i, "value");
    const Kind kind = KindOf(schema);
    if (kind == Kind::kJson) {
      rules_ += fmt::format("{}: {}{} {}\n", Part(i, "tag"), first, value, end);
      rules_ += fmt::format("{}: {}\n", value, Embedded(schema, root_));
      return {};
    }
    if (kind == Kind::kChoice) {
      std::string options;
      for (const std::string& choice : Choices(schema)) {
        options += (options.empty() ? "" : " | ") + LarkString(choice);
      }
      rules_ += fmt::format("{}: {}({}) {}\n", Part(i, "tag"), first, options, end);
      return {};
    }
    // The reader ends a text at the marker, whatever white space is around it.
    const std::string_view marker = Trim(dialect_.value_end);
    const std::string_view plain = writer_.PlainPart(marker);
    if (plain.empty()) {  // no text can spell it
      rules_ += fmt::format("{}: {}{} {}\n", Part(i, "tag"), first, kFree, end);
      return {};
    }
    const std::size_t at = dialect_.value_end.find(marker) + plain.size();
    INFERD_ASSIGN(const std::string rest, writer_.Text(dialect_.value_end.substr(at)));
    rules_ += fmt::format("{}: {}{} {}\n", Part(i, "tag"), first, value, rest);
    rules_ += fmt::format("{}[suffix={}]: {}\n", value, LarkString(plain), kFree);
    return {};
  }

  Result<> Tags(const std::vector<Parameter>& parameters) {
    INFERD_ASSIGN(const std::string start, writer_.Text(dialect_.value_start));
    std::string all = name_ + ":";
    std::size_t count = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& [key, schema, required] = parameters[i];
      if (!required && !CanWriteKey(dialect_, key)) {
        continue;
      }
      INFERD_ASSIGN(const std::string head,
                    writer_.Text(dialect_.key_start + key + dialect_.key_end));
      INFERD_TRY(AddTag(i, head + start, Behind(schema, root_)));
      all += fmt::format(" {}{}", Part(i, "tag"), required ? "" : "?");
      ++count;
    }
    rules_ = (count == 0 ? name_ + ": \"\"" : all) + "\n" + rules_;
    return {};
  }

  Result<> AnyTags() {
    INFERD_ASSIGN(const std::string before, writer_.Text(dialect_.key_start));
    INFERD_ASSIGN(const std::string after, writer_.Text(dialect_.key_end));
    INFERD_ASSIGN(const std::string start, writer_.Text(dialect_.value_start));
    INFERD_TRY(AddTag(0, before + "/[A-Za-z0-9_.-]{1,64}/ " + after + start, Json(true)));
    rules_ = fmt::format("{}: {}*\n", name_, Part(0, "tag")) + rules_;
    return {};
  }

  // ---- Python

  std::string PythonValue(std::size_t i, const Json& schema) {
    const std::string value = Part(i, "value");
    const bool truth = schema.is_object() && schema.size() == 1 && schema.contains("type") &&
                       schema["type"] == "boolean";
    rules_ += truth ? fmt::format("{}: \"True\" | \"False\"\n", value)
                    : fmt::format("{}: {}\n", value, Embedded(schema, root_));
    return value;
  }

  /// `argsN`: parameters from N on, with none before them; `moreN`: behind another one.
  Result<> Keywords(const std::vector<Parameter>& parameters) {
    std::string rules;
    std::size_t i = 0;
    for (const auto& [key, schema, required] : parameters) {
      const bool skip = !required && !CanWriteKey(dialect_, key);
      const std::string next = Part(i + 1, "more");
      if (skip) {
        rules += fmt::format("{}: {}\n", Part(i, "args"), Part(i + 1, "args"));
        rules += fmt::format("{}: {}\n", Part(i, "more"), next);
      } else {
        const std::string one = LarkString(key + "=") + " " + PythonValue(i, schema);
        rules += fmt::format("{}: {} {}{}\n",
                             Part(i, "args"),
                             one,
                             next,
                             required ? "" : " | " + Part(i + 1, "args"));
        rules +=
            fmt::format("{}: (\", \" {}){} {}\n", Part(i, "more"), one, required ? "" : "?", next);
      }
      ++i;
    }
    rules += fmt::format("{}: \"\"\n{}: \"\"\n", Part(i, "args"), Part(i, "more"));
    rules_ = fmt::format("{}: {}\n", name_, Part(0, "args")) + rules + rules_;
    return {};
  }

  Result<> AnyKeywords() {
    const std::string one = "/[A-Za-z_][A-Za-z0-9_]{0,63}/ \"=\" " + PythonValue(0, Json(true));
    rules_ = fmt::format("{}: ({} (\", \" {})*)?\n", name_, one, one) + rules_;
    return {};
  }

  const LarkWriter& writer_;
  const CallDialect& dialect_;
  const std::string name_;
  const Json root_;
  std::string rules_;
};

Result<> CheckTagHolds(const CallDialect& dialect, const Json& schema, const std::string& key) {
  switch (KindOf(schema)) {
    case Kind::kJson:
      return {};
    case Kind::kChoice:
      for (const std::string& choice : Choices(schema)) {
        if (!SurvivesTags(dialect, choice)) {
          return InvalidArgument(
              "/properties/{}: the value `{}` cannot be told from others where "
              "values are plain text",
              key,
              choice.substr(0, 50));
        }
      }
      return {};
    case Kind::kText:
      for (const auto& [keyword, value] : schema.items()) {
        if (keyword != "type") {
          return InvalidArgument(
              "/properties/{}/{} cannot be enforced where texts are written "
              "without quotes",
              key,
              keyword);
        }
      }
      return {};
    case Kind::kMixed:
      break;
  }
  const bool anything = schema == true || schema.empty();
  return anything || IsSimpleMix(schema)
             ? Result<>()
             : InvalidArgument(
                   "/properties/{} allows a text or something else, which cannot be "
                   "told apart where texts are written without quotes",
                   key);
}

}  // namespace

Result<std::string> ParameterRules(const LarkWriter& writer,
                                   const CallDialect& dialect,
                                   const std::string& name,
                                   std::string_view schema) {
  INFERD_ASSIGN(Json root, Parse(schema));
  return Rules(writer, dialect, name, std::move(root)).Write();
}

Result<> CheckParametersHold(const CallDialect& dialect, std::string_view schema) {
  constexpr std::string_view kKnown[] = {
      "type", "properties", "required", "additionalProperties", "$defs", "x-guidance"};
  INFERD_ASSIGN(const Json root, Parse(schema));
  for (const auto& [keyword, value] : root.items()) {
    if (std::ranges::find(kKnown, keyword) == std::end(kKnown)) {
      return InvalidArgument("/{} cannot be enforced where parameters are written one by one",
                             keyword);
    }
  }
  const Json additional = root.value("additionalProperties", Json(true));
  if (ParametersOf(root).empty() && !additional.is_boolean() && !additional.empty()) {
    return InvalidArgument(
        "/additionalProperties cannot be enforced where parameters are written one by one");
  }
  for (const Parameter& parameter : ParametersOf(root)) {
    if (parameter.required && !CanWriteKey(dialect, parameter.key)) {
      return InvalidArgument("/properties/{} has a name that this model cannot write",
                             parameter.key.substr(0, 50));
    }
    if (dialect.format == CallFormat::kTags) {
      INFERD_TRY(CheckTagHolds(dialect, Behind(parameter.schema, root), parameter.key));
    }
  }
  return {};
}

}  // namespace inferd::text
