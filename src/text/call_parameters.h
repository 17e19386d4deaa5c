// SPDX-License-Identifier: Apache-2.0
// The grammar of a call's arguments where a dialect writes each parameter by itself: in tags, or as
// Python's keyword arguments.
#pragma once

#include "inferd/result.h"
#include "text/dialect.h"
#include "text/lark_writer.h"

#include <string>
#include <string_view>

namespace inferd::text {

/// A terminal of grammars: any text.
inline constexpr std::string_view kFree = "/(.|\\n)*/";

/// Rules of which the first is `name`: the parameters of the schema (as PrepareJsonSchema() makes
/// it; empty: any object) in its order, each at most once, the required ones always. Values of
/// types that are written as JSON follow their schemas; a text is free.
Result<std::string> ParameterRules(const LarkWriter& writer,
                                   const CallDialect& dialect,
                                   const std::string& name,
                                   std::string_view schema);

/// InvalidArgument when something of the schema does not hold in what ParameterRules() allows; it
/// names the place.
Result<> CheckParametersHold(const CallDialect& dialect, std::string_view schema);

}  // namespace inferd::text
