// SPDX-License-Identifier: Apache-2.0
// A byte-level tokenizer and a model around it, with which scripts and prompts of tests are
// written.
#pragma once

#include "api/core/served_model.h"
#include "base/check.h"
#include "spec/step.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inferd::api {

// Ids 0..255 are bytes; then the specials.
constexpr std::int32_t kBos = 256, kEos = 257, kUser = 258, kWord = 260;
constexpr std::int32_t kVocab = 261;

/// GPT-2's spelling of a byte as a printable character.
inline std::string SpellByte(int byte) {
  static const std::vector<int> kCodes = [] {
    std::vector<int> codes(256);
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool plain = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      codes[static_cast<std::size_t>(b)] = plain ? b : next++;
    }
    return codes;
  }();
  const int code = kCodes[static_cast<std::size_t>(byte)];
  if (code < 0x80) {
    return {static_cast<char>(code)};
  }
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

inline std::shared_ptr<const text::Tokenizer> ByteTokenizer() {
  static const auto kTokenizer = [] {
    text::Vocabulary vocabulary;
    vocabulary.model = "gpt2";
    vocabulary.pre = "gpt-2";
    for (int byte = 0; byte < 256; ++byte) {
      vocabulary.tokens.push_back(SpellByte(byte));
      vocabulary.types.push_back(static_cast<std::int32_t>(text::TokenType::kNormal));
    }
    for (const char* special : {"<s>", "</s>", "<|user|>", "<|assistant|>"}) {
      vocabulary.tokens.emplace_back(special);
      vocabulary.types.push_back(static_cast<std::int32_t>(text::TokenType::kControl));
    }
    vocabulary.tokens.emplace_back("wo");  // one token with two letters
    vocabulary.types.push_back(static_cast<std::int32_t>(text::TokenType::kNormal));
    vocabulary.merges = {"w o"};
    vocabulary.bos_id = kBos;
    vocabulary.eos_id = kEos;
    vocabulary.add_bos = true;
    auto made = text::Tokenizer::FromVocab(vocabulary);
    INFERD_CHECK_MSG(made.ok(), made.ok() ? "" : made.error().message());
    return *std::move(made);
  }();
  return kTokenizer;
}

inline std::shared_ptr<const ServedModel> TestModel() {
  auto model = std::make_shared<ServedModel>();
  model->names = std::make_shared<ModelNames>(std::vector<std::string>{"test-model", "alias"});
  model->tokenizer = ByteTokenizer();
  auto compiled = text::ChatTemplate::Compile(
      "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' and m.content == 'raise' %}"
      "{{ raise_exception('no raising here') }}{% endif %}<|user|>{{ m.role }}:{{ m.content }}{% "
      "endfor %}"
      "{% if add_generation_prompt %}<|assistant|>{{ greeting }}{% endif %}",
      {.bos = "<s>", .eos = "</s>", .pad = std::nullopt, .unk = std::nullopt});
  INFERD_CHECK_MSG(compiled.ok(), compiled.ok() ? "" : compiled.error().message());
  model->chat_template = *std::move(compiled);
  model->grammars =
      std::make_shared<text::GrammarCache>(model->tokenizer, std::vector<std::int32_t>{kEos});
  model->created_s = 1'700'000'000;
  model->vocab_size = kVocab;
  return model;
}

/// Bytes of a text as token ids.
inline std::vector<std::int32_t> Bytes(std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const char c : text) {
    ids.push_back(static_cast<unsigned char>(c));
  }
  return ids;
}

/// A token as an engine gives it: of `logprobs` others the first is the token itself, the rest are
/// impossible.
inline spec::SampledToken Sampled(std::int32_t token, std::int32_t logprobs) {
  spec::SampledToken sampled;
  sampled.token = token;
  if (logprobs >= 0) {
    sampled.logprob = -0.5F;
    sampled.rank = 1;
    const float impossible = -std::numeric_limits<float>::infinity();
    for (std::int32_t i = 0; i < logprobs; ++i) {
      sampled.top.push_back({i == 0 ? token : 'A' + i, i == 0 ? -0.5F : impossible});
    }
  }
  return sampled;
}

inline std::vector<std::int32_t> WithEos(std::vector<std::int32_t> ids) {
  ids.push_back(kEos);
  return ids;
}

}  // namespace inferd::api
