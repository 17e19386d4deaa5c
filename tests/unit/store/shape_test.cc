// SPDX-License-Identifier: Apache-2.0
#include "store/shape.h"

#include "base/file.h"
#include "spec/memory_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace inferd::store {
namespace {

using testing::HasSubstr;

std::int64_t Parameters(const char* name) {
  const auto shape = ReadShape(name);
  EXPECT_TRUE(shape.ok()) << (shape.ok() ? "" : shape.error().message());
  return shape.ok() ? spec::CountParameters(shape->spec) : 0;
}

TEST(Shape, BuiltInShapesHaveTheParametersThatModelCardsState) {
  EXPECT_EQ(Parameters("llama-2-70b"), 68'976'648'192);
  EXPECT_EQ(Parameters("llama-70b"), 70'553'706'496);
  EXPECT_EQ(Parameters("LLAMA-3.1-8B"), 8'030'261'248);
  EXPECT_EQ(Parameters("mixtral-8x7b"), 46'702'792'704);
  EXPECT_EQ(Parameters("qwen2.5-72b"), 72'706'203'648);
  EXPECT_EQ(Parameters("Qwen/Qwen3-30B-A3B"), 30'532'122'624);
  EXPECT_EQ(Parameters("qwen2.5-0.5b"), 494'032'768);
  EXPECT_NEAR(static_cast<double>(Parameters("llama-3.1-405b")), 405.9e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(Parameters("qwen3-235b-a22b")), 235.1e9, 0.1e9);
}

TEST(Shape, AConfigIsEnough) {
  const std::string folder = testing::TempDir() + "shape_config";
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/config.json";
  ASSERT_TRUE(base::WriteFileAtomic(
                  path,
                  R"({"architectures":["LlamaForCausalLM"],"vocab_size":1000,"hidden_size":256,
"intermediate_size":512,"num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,
"max_position_embeddings":4096,"torch_dtype":"float32"})")
                  .ok());
  for (const std::string& name : {path, folder, folder + "/"}) {
    const auto shape = ReadShape(name);
    ASSERT_TRUE(shape.ok()) << shape.error().message();
    EXPECT_EQ(shape->bytes_per_weight, 4);
    EXPECT_EQ(shape->spec.name, "shape_config");
  }
}

TEST(Shape, ACheckpointForAnFp8KvCacheSaysSo) {
  for (const auto& [name, says] : {std::pair("fp8-kv", true), std::pair("fp8-tensor", false)}) {
    const auto shape = ReadShape(std::string(INFERD_TEST_DATA) + "/quantised/" + name);
    ASSERT_TRUE(shape.ok()) << shape.error().message();
    EXPECT_EQ(shape->fp8_kv, says) << name;
  }
}

TEST(Shape, WhatIsUnknownIsAnsweredWithNames) {
  const auto shape = ReadShape("llama-71b");
  ASSERT_FALSE(shape.ok());
  EXPECT_EQ(shape.error().code(), Code::kNotFound);
  EXPECT_THAT(shape.error().message(), HasSubstr("llama-3.3-70b"));
  EXPECT_FALSE(ReadShape("").ok());
}

}  // namespace
}  // namespace inferd::store
