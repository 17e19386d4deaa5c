// SPDX-License-Identifier: Apache-2.0
// `inferd tokenize MODEL TEXT`.
#include "app/commands.h"
#include "app/model_text.h"
#include "base/error.h"

#include <cstdio>
#include <iostream>
#include <iterator>

namespace inferd::app {

Result<> TokenizeText(const Config& config, const std::vector<std::string>& words) {
  if (words.empty()) {
    return InvalidArgument("usage: inferd tokenize MODEL TEXT; TEXT - reads standard input");
  }
  std::string text;
  if (words.size() == 1 && words.front() == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    for (const std::string& word : words) {
      text += (text.empty() ? "" : " ") + word;
    }
  }
  INFERD_ASSIGN(const store::Model model, FindModel(config.model));
  INFERD_ASSIGN(const auto tokenizer, MakeTokenizer(model.tokenizer));
  INFERD_ASSIGN(const auto ids, tokenizer->Encode(text, {}));
  for (const std::int32_t id : ids) {
    const text::TokenText token = text::MakeTokenText(*tokenizer, id);
    std::printf("%7d  %s\n", id, token.token.c_str());
  }
  std::printf("%zu tokens\n", ids.size());
  return {};
}

}  // namespace inferd::app
