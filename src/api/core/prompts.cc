// SPDX-License-Identifier: Apache-2.0
#include "api/core/prompts.h"

#include "api/core/generate_params.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

/// A string, or ids (`path` names the value). Text gets BOS once if the model wants one; ids are
/// taken as they are.
Result<> AddPrompt(const ServerContext& context,
                   const Json& value,
                   const std::string& path,
                   bool add_special,
                   Fault* fault,
                   Prompts* prompts) {
  std::vector<std::int32_t> ids;
  std::string text;
  if (value.is_string()) {
    text = value.get<std::string>();
    INFERD_ASSIGN(ids, EncodePrompt(context, text, add_special, path, fault));
  } else {
    INFERD_ASSIGN(ids,
                  ParseIds(value, path, context.model.vocab_size, limits::kDetokenizeIds, fault));
    text = context.model.tokenizer->Decode(ids, false);
  }
  if (ids.empty()) {
    return FieldError(fault, path, "{} is empty; a prompt needs at least one token", path);
  }
  prompts->ids.push_back(std::move(ids));
  prompts->texts.push_back(std::move(text));
  return {};
}

}  // namespace

Result<Prompts> ParsePrompts(const ServerContext& context,
                             const Fields& fields,
                             std::string_view name) {
  const Json* const given = fields.Find(name);
  Fault* const fault = fields.fault();
  if (given == nullptr) {
    return FieldError(fault, std::string(name), "{} is missing", name);
  }
  INFERD_ASSIGN(const bool add_special, fields.BoolOr("add_special_tokens", true));
  Prompts prompts;
  const bool is_list = given->is_array() && !given->empty() && !given->front().is_number();
  if (!is_list) {
    if (!given->is_string() && !given->is_array()) {
      return FieldError(fault,
                        std::string(name),
                        "{} must be a string, a list of strings, or lists of token ids, not {}",
                        name,
                        given->type_name());
    }
    INFERD_TRY(AddPrompt(context, *given, std::string(name), add_special, fault, &prompts));
    return prompts;
  }
  if (given->size() > limits::kPrompts) {
    return FieldError(fault,
                      std::string(name),
                      "{} has {} entries; at most {} are allowed",
                      name,
                      given->size(),
                      limits::kPrompts);
  }
  for (std::size_t i = 0; i < given->size(); ++i) {
    const Json& item = (*given)[i];
    const std::string path = fmt::format("{}[{}]", name, i);
    if (item.type() != given->front().type() || (!item.is_string() && !item.is_array())) {
      return FieldError(fault,
                        path,
                        "{} must hold strings only or lists of token ids only; {} is {}",
                        name,
                        path,
                        item.type_name());
    }
    INFERD_TRY(AddPrompt(context, item, path, add_special, fault, &prompts));
  }
  return prompts;
}

}  // namespace inferd::api
