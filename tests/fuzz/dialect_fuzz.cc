// SPDX-License-Identifier: Apache-2.0
// Replies of models: in every dialect and however they are cut, the parts are the same, and no text
// is given out that is not UTF-8 when the reply was.
#include "base/check.h"
#include "target.h"
#include "text/dialect.h"
#include "text/dialect_parser.h"
#include "unit/text/dialect_samples.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace inferd::fuzz {
namespace {

using text::OutputDelta;

struct Joined {
  std::vector<std::pair<OutputDelta::Kind, std::string>> parts;
  bool ended = false;
  bool in_reasoning = false;
  friend bool operator==(const Joined&, const Joined&) = default;
};

Joined Parse(const text::OutputParserFactory& factory,
             std::string_view reply,
             std::mt19937* random) {
  const auto parser = factory.Make();
  std::vector<OutputDelta> deltas;
  while (!reply.empty()) {
    const std::size_t size = random == nullptr ? reply.size() : 1 + (*random)() % 9;
    parser->Push(reply.substr(0, size), &deltas);
    reply.remove_prefix(std::min(size, reply.size()));
  }
  Joined joined;
  joined.in_reasoning = parser->in_reasoning();
  parser->Finish(&deltas);
  joined.ended = parser->ended();
  for (const OutputDelta& delta : deltas) {
    const bool begins = delta.kind == OutputDelta::Kind::kToolCall;
    if (begins || joined.parts.empty() || joined.parts.back().first != delta.kind) {
      joined.parts.emplace_back(delta.kind, delta.text);
    } else {
      joined.parts.back().second += delta.text;
    }
  }
  return joined;
}

const std::vector<std::shared_ptr<const text::OutputParserFactory>>& Factories() {
  static const auto factories = [] {
    std::vector<std::shared_ptr<const text::OutputParserFactory>> made;
    const auto table = text::DialectTable::Load();
    INFERD_CHECK(table.ok());
    for (const text::Sample& sample : text::Samples()) {
      const auto dialect = table->Select("",
                                         sample.calls.empty() ? "none" : sample.calls,
                                         sample.reasoning.empty() ? "none" : sample.reasoning);
      INFERD_CHECK(dialect.ok());
      for (const int max_calls : {0, 1}) {
        made.push_back(text::MakeParsers(
            {.dialect = *dialect, .tools = text::SampleTools(), .max_calls = max_calls},
            sample.prompt));
      }
    }
    std::erase(made, nullptr);
    return made;
  }();
  return factories;
}

}  // namespace

/// Two bytes choose the dialect and the cuts; the rest is the reply, or, of a seed that is only a
/// number, one of the samples.
void Look(std::string_view input) {
  if (input.size() < 2) {
    return;
  }
  const auto& factories = Factories();
  const auto chosen = static_cast<std::uint8_t>(input[0]);
  std::mt19937 random(static_cast<std::uint8_t>(input[1]));
  const text::OutputParserFactory& factory = *factories[chosen % factories.size()];
  const std::string_view reply = input.substr(2);
  const Joined whole = Parse(factory, reply, nullptr);
  INFERD_CHECK(whole == Parse(factory, reply, &random));
  INFERD_CHECK(whole == Parse(factory, reply, &random));
}

}  // namespace inferd::fuzz
