// SPDX-License-Identifier: Apache-2.0
// Tells the parts of a reply's text apart: reasoning, content and tool calls. One parser per
// choice; how a model writes them is data (a dialect), not code.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::text {

/// New text of one part. Deltas of a choice come in the order in which the model wrote them.
struct OutputDelta {
  enum class Kind : std::uint8_t {
    kContent,
    kReasoning,
    kToolCall,       // begins call `call`; `text` is the whole name of the tool
    kToolArguments,  // more of the arguments of call `call`: a piece of one JSON object
  };
  Kind kind = Kind::kContent;
  std::int32_t call = -1;  // 0, 1, ... within the choice
  std::string text;
  std::string id = {};  // of kToolCall: the model's own, or a new one as its template wants it
};

/// Owner: one choice; one thread.
class OutputParser {
 public:
  virtual ~OutputParser() = default;

  /// Appends what `text` makes certain; keeps back what may yet become a marker.
  virtual void Push(std::string_view text, std::vector<OutputDelta>* out) = 0;
  /// The choice has ended: gives out what was kept back.
  virtual void Finish(std::vector<OutputDelta>* out) = 0;
  /// The text that comes next is reasoning, as far as is known.
  virtual bool in_reasoning() const = 0;
  /// All that the request allows has been said: the choice is over, whatever would follow.
  virtual bool ended() const = 0;
};

/// Makes the parser of each choice of a request. Immutable, shared by the choices.
class OutputParserFactory {
 public:
  virtual ~OutputParserFactory() = default;
  virtual std::unique_ptr<OutputParser> Make() const = 0;
};

}  // namespace inferd::text
