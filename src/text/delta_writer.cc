// SPDX-License-Identifier: Apache-2.0
#include "text/delta_writer.h"

#include <algorithm>
#include <random>
#include <utility>

namespace inferd::text {

std::string NewCallId(bool nine_characters) {
  constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  thread_local std::mt19937_64 engine = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  std::uniform_int_distribution<std::size_t> pick(0, kLetters.size() - 1);
  std::string id = nine_characters ? "" : "call_";
  const std::size_t length = id.size() + (nine_characters ? 9 : 24);
  while (id.size() < length) {
    id += kLetters[pick(engine)];
  }
  return id;
}

void DeltaWriter::Add(OutputDelta::Kind kind, std::int32_t call, std::string_view text) {
  if (out_ == nullptr || text.empty()) {
    return;
  }
  if (!out_->empty() && kind != OutputDelta::Kind::kToolCall && out_->back().kind == kind &&
      out_->back().call == call) {
    out_->back().text += text;
    return;
  }
  out_->push_back({.kind = kind, .call = call, .text = std::string(text), .id = {}});
}

void DeltaWriter::Text(OutputDelta::Kind kind, std::string_view text) {
  if (space_kind_ != kind) {
    space_.clear();
    space_kind_ = kind;
  }
  const std::size_t end = text.find_last_not_of(" \t\r\n") + 1;  // 0: white space only
  if (end > 0) {
    FlushSpace();
    Add(kind, -1, text.substr(0, end));
  }
  space_ += text.substr(end);
}

void DeltaWriter::FlushSpace() {
  if (space_kind_ == OutputDelta::Kind::kContent || options_.reasoning) {
    Add(space_kind_, -1, space_);
  }
  space_.clear();
}

void DeltaWriter::Content(std::string_view text) {
  Text(OutputDelta::Kind::kContent, text);
  has_content_ |= text.find_first_not_of(" \t\r\n") != std::string_view::npos;
}

void DeltaWriter::Reasoning(std::string_view text) {
  if (options_.reasoning) {
    Text(OutputDelta::Kind::kReasoning, text);
  }
}

bool DeltaWriter::KnowsTool(std::string_view name) const {
  return std::ranges::any_of(options_.tools,
                             [&](const ToolShape& tool) { return tool.name == name; });
}

std::uint8_t DeltaWriter::TypesOf(std::string_view tool, std::string_view parameter) const {
  for (const ToolShape& shape : options_.tools) {
    if (shape.name == tool) {
      const auto it = shape.types.find(parameter);
      return it == shape.types.end() ? static_cast<std::uint8_t>(kAnyType) : it->second;
    }
  }
  return kAnyType;
}

void DeltaWriter::BeginCall(std::string_view name, std::string_view id) {
  DropSpace();
  open_ = true;
  has_arguments_ = false;
  ++calls_;
  if (out_ != nullptr) {
    const bool nine =
        options_.dialect.calls != nullptr && options_.dialect.calls->nine_character_ids;
    out_->push_back({.kind = OutputDelta::Kind::kToolCall,
                     .call = calls_ - 1,
                     .text = std::string(name),
                     .id = id.empty() ? NewCallId(nine) : std::string(id)});
  }
}

void DeltaWriter::AddArguments(std::string_view json) {
  has_arguments_ |= !json.empty();
  Add(OutputDelta::Kind::kToolArguments, calls_ - 1, json);
}

void DeltaWriter::EndCall() {
  if (open_ && !has_arguments_) {
    AddArguments("{}");
  }
  open_ = false;
}

}  // namespace inferd::text
