// SPDX-License-Identifier: Apache-2.0
#include "text/lark_writer.h"

#include "text/json_stream.h"

#include <algorithm>
#include <cstdint>
#include <functional>

namespace inferd::text {

std::string LarkString(std::string_view text) {
  std::string quoted;
  AppendJsonString(text, &quoted);
  return quoted;
}

LarkWriter::LarkWriter(const GrammarVocabulary& vocabulary) : vocabulary_(vocabulary) {
  const Tokenizer& tokenizer = vocabulary.tokenizer();
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.IsSpecial(id) && !tokenizer.TokenBytes(id).empty()) {
      specials_.push_back(tokenizer.TokenBytes(id));
    }
  }
  std::ranges::stable_sort(specials_, std::greater(), &std::string_view::size);
}

std::string_view LarkWriter::PlainPart(std::string_view text) const {
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::string_view rest = text.substr(at);
    if (std::ranges::any_of(
            specials_, [&](std::string_view spelling) { return rest.starts_with(spelling); })) {
      return text.substr(0, at);
    }
  }
  return text;
}

Result<std::string> LarkWriter::Text(std::string_view text) const {
  std::string lark;
  while (!text.empty()) {
    const std::string_view plain = PlainPart(text);
    if (!plain.empty()) {
      lark += LarkString(plain) + ' ';
      text.remove_prefix(plain.size());
      continue;
    }
    const auto special = std::ranges::find_if(
        specials_, [&](std::string_view spelling) { return text.starts_with(spelling); });
    INFERD_ASSIGN(const std::string token, vocabulary_.LarkToken(*special));
    lark += token + ' ';
    text.remove_prefix(special->size());
  }
  return lark;
}

}  // namespace inferd::text
