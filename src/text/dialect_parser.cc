// SPDX-License-Identifier: Apache-2.0
#include "text/dialect_parser.h"

#include "text/channel_parser.h"
#include "text/marker_parser.h"
#include "text/white_space.h"

#include <utility>

namespace inferd::text {
namespace {

/// `prompt` leaves reasoning open.
bool OpensReasoning(const ReasoningDialect& reasoning,
                    std::string_view prompt,
                    std::size_t continued_bytes) {
  const std::string_view start = Trim(reasoning.start);
  const std::string_view end = Trim(reasoning.end);
  const std::size_t continued = continued_bytes > prompt.size() ? prompt.size() : continued_bytes;
  // What other people wrote into the prompt does not count: only its very end does, and the
  // assistant's own message.
  const bool before = Trim(prompt.substr(0, prompt.size() - continued)).ends_with(start);
  const std::string_view own = prompt.substr(prompt.size() - continued);
  const std::size_t opened = own.rfind(start);
  const std::size_t closed = own.rfind(end);
  if (opened == std::string_view::npos) {
    return before && closed == std::string_view::npos;
  }
  return closed == std::string_view::npos || closed < opened;
}

class Factory final : public OutputParserFactory {
 public:
  Factory(ParserOptions options, bool in_reasoning, std::string message_begun)
      : options_(std::move(options)),
        in_reasoning_(in_reasoning),
        message_begun_(std::move(message_begun)) {}

  std::unique_ptr<OutputParser> Make() const override {
    if (options_.dialect.channels()) {
      return std::make_unique<ChannelParser>(options_, message_begun_);
    }
    return std::make_unique<MarkerParser>(options_, in_reasoning_);
  }

 private:
  ParserOptions options_;
  bool in_reasoning_;
  std::string message_begun_;  // kChannels: the unfinished last message of the prompt
};

}  // namespace

std::shared_ptr<const OutputParserFactory> MakeParsers(ParserOptions options,
                                                       std::string_view prompt,
                                                       std::size_t continued_bytes) {
  const Dialect& dialect = options.dialect;
  if (dialect.channels()) {
    const std::size_t start = prompt.rfind(harmony::kStart);
    std::string begun(start == std::string_view::npos ? std::string_view() : prompt.substr(start));
    return std::make_shared<Factory>(std::move(options), false, std::move(begun));
  }
  if (dialect.calls == nullptr && dialect.reasoning == nullptr) {
    return nullptr;
  }
  const bool in_reasoning =
      dialect.reasoning != nullptr && OpensReasoning(*dialect.reasoning, prompt, continued_bytes);
  return std::make_shared<Factory>(std::move(options), in_reasoning, std::string());
}

}  // namespace inferd::text
