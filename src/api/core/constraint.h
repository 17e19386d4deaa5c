// SPDX-License-Identifier: Apache-2.0
// Structured output: the request's fields that ask for it, and the constraint that the engine
// follows.
#pragma once

#include "api/core/context.h"
#include "api/core/fields.h"
#include "inferd/result.h"
#include "leader/inference_service.h"
#include "text/grammar.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace inferd::api {

/// The grammar that a request asks for: response_format, structured_outputs, guided_* and the names
/// of other servers; null when it asks for none, InvalidArgument with the field when for two.
Result<std::shared_ptr<const text::Grammar>> ParseGrammar(const ServerContext& context,
                                                          const Fields& fields);

/// Compiles through the model's cache; an error names `param`.
Result<std::shared_ptr<const text::Grammar>> CompileGrammar(const ServerContext& context,
                                                            text::GrammarKind kind,
                                                            std::string_view source,
                                                            const std::string& param,
                                                            Fault* fault);

/// The grammar of a format as Responses and Anthropic's API write it: {"type": "json_schema",
/// "schema": ..}, json_object, or text (null). `path` names it.
Result<std::shared_ptr<const text::Grammar>> ReadFormat(const ServerContext& context,
                                                        const nlohmann::ordered_json& format,
                                                        const std::string& path,
                                                        Fault* fault);

/// Where in an output the grammar begins to hold. Before, every token is free.
struct ConstraintStart {
  std::optional<std::int32_t> after_token;  // behind the first such token
  std::string after_text;                   // or behind this text; empty: not used
  bool at_once() const { return !after_token && after_text.empty(); }
};

std::shared_ptr<const leader::TokenConstraint> MakeConstraint(
    std::shared_ptr<const text::Grammar> grammar,
    std::shared_ptr<const text::Tokenizer> tokenizer,
    ConstraintStart start);

}  // namespace inferd::api
