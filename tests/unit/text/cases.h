// SPDX-License-Identifier: Apache-2.0
// Reads the reference data that tests/data/text/make_text_cases.py wrote.
#pragma once

#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace inferd::text {

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline nlohmann::json ReadJson(const std::string& path) {
  return nlohmann::json::parse(ReadFile(path));
}

inline std::string DataPath(const std::string& name) {
  return std::string(INFERD_TEST_DATA) + "/" + name;
}

inline Vocabulary ReadVocabulary(const std::string& path) {
  const nlohmann::json json = ReadJson(path);
  Vocabulary out;
  out.model = json.value("model", "");
  out.pre = json.value("pre", "");
  out.architecture = json.value("architecture", "");
  out.tokens = json.value("tokens", std::vector<std::string>());
  out.scores = json.value("scores", std::vector<float>());
  out.types = json.value("types", std::vector<std::int32_t>());
  out.merges = json.value("merges", std::vector<std::string>());
  const auto optional = [&](const char* name, auto* field) {
    if (json.contains(name)) {
      *field = json[name].get<typename std::remove_pointer_t<decltype(field)>::value_type>();
    }
  };
  optional("bos_id", &out.bos_id);
  optional("eos_id", &out.eos_id);
  optional("unk_id", &out.unk_id);
  optional("add_bos", &out.add_bos);
  optional("add_eos", &out.add_eos);
  optional("add_space_prefix", &out.add_space_prefix);
  return out;
}

inline std::shared_ptr<const Tokenizer> TokenizerFromVocabulary(const std::string& kind) {
  auto tokenizer =
      Tokenizer::FromVocab(ReadVocabulary(DataPath("text/" + kind + "_vocabulary.json")));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  return *tokenizer;
}

inline std::shared_ptr<const Tokenizer> TokenizerFromJsonFile(const std::string& kind) {
  auto tokenizer =
      Tokenizer::FromJson(ReadFile(DataPath("tokenizers/" + kind + "/tokenizer.json")), {});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  return *tokenizer;
}

}  // namespace inferd::text
