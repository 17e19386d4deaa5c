// SPDX-License-Identifier: Apache-2.0
// Tells reasoning, content and tool calls of a reply apart, as a dialect says. One state machine
// for all dialects, driven byte by byte: how a stream is cut cannot change the result.
#pragma once

#include "text/dialect.h"
#include "text/output_parser.h"
#include "text/tool_shape.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::text {

struct ParserOptions {
  Dialect dialect;                    // calls null: tool calls stay content
  std::vector<ToolShape> tools = {};  // that were offered
  int max_calls = 0;                  // the reply ends with this call; 0: any number
  bool reasoning = true;              // false: it is dropped
};

/// Null when the dialect has nothing to tell apart. White space around reasoning and before or
/// between calls is dropped. What looks like a call and is none comes back as content; once a
/// call's arguments have begun, the call stays, and what does not belong to it becomes content.
///
/// The reply goes on where `prompt` ends, which may be within reasoning. The last
/// `continued_bytes` of it are a message of the assistant that the reply continues.
std::shared_ptr<const OutputParserFactory> MakeParsers(ParserOptions options,
                                                       std::string_view prompt,
                                                       std::size_t continued_bytes = 0);

}  // namespace inferd::text
