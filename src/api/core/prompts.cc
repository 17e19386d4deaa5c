// SPDX-License-Identifier: Apache-2.0
#include "api/core/prompts.h"

#include "api/core/generate_params.h"
#include "api/core/prompt_cut.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <span>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

struct Reading {
  bool add_special = true;
  std::optional<std::int64_t> keep;  // this many of the last tokens
};

/// A string, or ids (`path` names the value). Text gets BOS once if the model wants one; ids are
/// taken as they are.
Result<> AddPrompt(const ServerContext& context,
                   const Json& value,
                   const std::string& path,
                   const Reading& reading,
                   Fault* fault,
                   Prompts* prompts) {
  std::vector<std::int32_t> ids;
  std::string text;
  if (value.is_string()) {
    text = value.get<std::string>();
    INFERD_ASSIGN(ids, EncodePrompt(context, text, reading.add_special, path, fault, reading.keep));
    if (reading.keep && static_cast<std::int64_t>(ids.size()) == *reading.keep) {
      const bool has_bos = reading.add_special && ids.front() == context.service.model().bos_id;
      text = context.model.tokenizer->Decode(std::span(ids).subspan(has_bos ? 1 : 0), false);
    }
  } else {
    INFERD_ASSIGN(ids,
                  ParseIds(value, path, context.model.vocab_size, limits::kDetokenizeIds, fault));
    if (reading.keep) {
      CutPrompt(*reading.keep, -1, &ids);
    }
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
                             std::string_view name,
                             std::int64_t reserved) {
  const Json* const given = fields.Find(name);
  Fault* const fault = fields.fault();
  if (given == nullptr) {
    return FieldError(fault, std::string(name), "{} is missing", name);
  }
  Reading reading;
  INFERD_ASSIGN(reading.add_special, fields.BoolOr("add_special_tokens", true));
  INFERD_ASSIGN(reading.keep, ParsePromptCut(context, fields, reserved));
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
    INFERD_TRY(AddPrompt(context, *given, std::string(name), reading, fault, &prompts));
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
    INFERD_TRY(AddPrompt(context, item, path, reading, fault, &prompts));
  }
  return prompts;
}

}  // namespace inferd::api
