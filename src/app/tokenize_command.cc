// SPDX-License-Identifier: Apache-2.0
// `inferd tokenize MODEL TEXT`.
#include "app/commands.h"
#include "app/model_text.h"
#include "base/error.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <iostream>
#include <iterator>

namespace inferd::app {

namespace {

/// A JSON string per line in, a JSON list of ids per line out.
Result<> TokenizeLines(const text::Tokenizer& tokenizer) {
  std::string line;
  for (std::size_t number = 1; std::getline(std::cin, line); ++number) {
    const auto text = nlohmann::json::parse(line, nullptr, false);
    if (!text.is_string()) {
      return InvalidArgument("line {} of the input is not a JSON string", number);
    }
    INFERD_ASSIGN(const auto ids, tokenizer.Encode(text.get_ref<const std::string&>(), {}));
    std::printf("%s\n", nlohmann::json(ids).dump().c_str());
  }
  return {};
}

}  // namespace

Result<> TokenizeText(const Config& config, const std::vector<std::string>& words) {
  if (words.empty()) {
    return InvalidArgument(
        "usage: inferd tokenize MODEL TEXT; TEXT - reads standard input, - json a JSON string per "
        "line");
  }
  const bool lines = words.size() == 2 && words[0] == "-" && words[1] == "json";
  std::string text;
  if (lines) {
    // read below, line by line
  } else if (words.size() == 1 && words.front() == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    for (const std::string& word : words) {
      text += (text.empty() ? "" : " ") + word;
    }
  }
  INFERD_ASSIGN(const store::Model model, FindModel(config.model));
  INFERD_ASSIGN(const auto tokenizer, MakeTokenizer(model.tokenizer));
  if (lines) {
    return TokenizeLines(*tokenizer);
  }
  INFERD_ASSIGN(const auto ids, tokenizer->Encode(text, {}));
  for (const std::int32_t id : ids) {
    const text::TokenText token = text::MakeTokenText(*tokenizer, id);
    std::printf("%7d  %s\n", id, token.token.c_str());
  }
  std::printf("%zu tokens\n", ids.size());
  return {};
}

}  // namespace inferd::app
