// SPDX-License-Identifier: Apache-2.0
#include "store/catalog.h"

#include "store/resolve.h"
#include "unit/store/environment.h"
#include "unit/store/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace inferd::store {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Catalog, BuiltInOneIsTheFileOfTheRepository) {
  EXPECT_EQ(BuiltInCatalog(), ReadAll(std::string(INFERD_CONFIGS) + "/models.yaml"));
  const auto catalog = Catalog::Load();
  ASSERT_TRUE(catalog.ok()) << catalog.error().message();
  for (const char* name : {"qwen2.5-coder-0.5b",
                           "gemma-3-270m",
                           "llama-70b",
                           "mixtral-8x7b",
                           "qwen2-72b",
                           "llama-3-8b",
                           "llama-3-70b",
                           "qwen3-0.6b",
                           "qwen3-8b",
                           "qwen3-30b-a3b",
                           "phi-3-mini"}) {
    EXPECT_NE(catalog->Find(name), nullptr) << name;
  }
  for (const CatalogEntry& entry : catalog->entries()) {
    EXPECT_FALSE(entry.license.empty()) << entry.name;
  }
}

TEST(Catalog, FindsNamesAndAliasesWithoutRegardToCase) {
  const auto catalog = Catalog::Load();
  ASSERT_TRUE(catalog.ok());
  ASSERT_NE(catalog->Find("Qwen2.5-Coder-0.5B-Instruct"), nullptr);
  EXPECT_EQ(catalog->Find("Qwen2.5-Coder-0.5B-Instruct")->name, "qwen2.5-coder-0.5b");
  EXPECT_EQ(catalog->Find("llama-2-70b"), catalog->Find("llama-70b"));
  EXPECT_EQ(catalog->Find("nothing"), nullptr);
  EXPECT_EQ(catalog->Nearest("mixtral-8x7"), "mixtral-8x7b");
  EXPECT_EQ(catalog->Nearest("completely different"), "");
}

TEST(Catalog, RefusesMistakesByName) {
  struct Mistake {
    const char* yaml;
    const char* message;
  };
  const Mistake cases[] = {
      {"models: [", "c.yaml"},
      {"[1, 2]", "not a map"},
      {"other: 1", "key other is not known"},
      {"models: {a: {licence: x}}", "key licence is not known"},
      {"models: {a: {license: x}}", "no sources"},
      {"models: {a: {sources: [{kind: s4}]}}", "kind \"s4\""},
      {"models: {a: {sources: [{kind: hf, repo: x}]}}", "repo \"x\""},
      {"models: {a: {sources: [{kind: hf, repo: x/y, files: [../z]}]}}",
       "\"../z\" is not a file name"},
      {"models: {a: {sources: [{kind: hf, repo: x/y, files: [{name: z, sha256: 12}]}]}}",
       "64 hexadecimal digits"},
      {"models: {a: {sources: [{kind: hf, repo: x/y, files: [{name: z, bytes: many}]}]}}",
       "c.yaml"},
      {"models: {a: {sources: [{kind: pypi, packages: [p]}]}}", "needs packages and one file"},
      {"models: {a: {sources: [{kind: hf, repo: x/y}]}, A: {sources: [{kind: hf, repo: x/y}]}}",
       "A occurs twice"},
  };
  for (const Mistake& test : cases) {
    const auto catalog = Catalog::Parse("c.yaml", test.yaml);
    ASSERT_FALSE(catalog.ok()) << test.yaml;
    EXPECT_THAT(catalog.error().message(), AllOf(HasSubstr("c.yaml"), HasSubstr(test.message)));
  }
}

class Resolve : public testing::Test {
 protected:
  Resolve() : cache_("INFERD_CACHE", dir_.path()), home_("HF_HOME", dir_.path() + "/hf") {}
  TempDir dir_;
  SetEnvironment cache_;
  SetEnvironment home_;
};

TEST_F(Resolve, TakesLocalPathsFirst) {
  const std::string file = dir_.Write("some.gguf", "x");
  EXPECT_EQ(*ResolveModel(file), file);
  EXPECT_EQ(*ResolveModel(dir_.path() + "/."), dir_.path() + "/");
  EXPECT_EQ(ResolveModel("").error().code(), Code::kInvalidArgument);
}

TEST_F(Resolve, FindsCatalogModelsInTheCache) {
  EXPECT_THAT(ResolveModel("qwen2.5-coder-0.5b").error().message(),
              HasSubstr("inferd fetch qwen2.5-coder-0.5b"));
  const std::string qwen = dir_.Write("models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "x");
  const std::string gemma = dir_.Write("models/gemma-3-270m-q4_k_m.gguf", "x");
  EXPECT_EQ(*ResolveModel("qwen2.5-coder-0.5b"), qwen);
  EXPECT_EQ(*ResolveModel("gemma-3-270m"), gemma);
}

TEST_F(Resolve, FindsWhatOtherToolsOfTheHubLoaded) {
  dir_.Write("hf/hub/models--Qwen--Qwen3-0.6B/refs/main", "abc123\n");
  EXPECT_FALSE(ResolveModel("qwen3-0.6b").ok());
  dir_.Write("hf/hub/models--Qwen--Qwen3-0.6B/snapshots/abc123/config.json", "{}");
  EXPECT_THAT(*ResolveModel("qwen3-0.6b"), testing::EndsWith("snapshots/abc123"));
  EXPECT_THAT(*ResolveModel("Qwen/Qwen3-0.6B"), testing::EndsWith("snapshots/abc123"));
}

TEST_F(Resolve, SuggestsTheNearestName) {
  EXPECT_THAT(ResolveModel("quen3-8b").error().message(), HasSubstr("did you mean qwen3-8b?"));
  EXPECT_EQ(ResolveModel("what is this").error().code(), Code::kNotFound);
  EXPECT_THAT(ResolveModel("what is this").error().message(), HasSubstr("gemma-3-270m"));
}

TEST(HubName, TakesOnlyWhatTheHubCouldMean) {
  EXPECT_EQ(ParseHubName("org/repo")->repo, "org/repo");
  EXPECT_EQ(ParseHubName("org/repo:Q4_K_M")->selector, "Q4_K_M");
  for (const char* name : {"repo",
                           "org/",
                           "/repo",
                           "a/b/c",
                           "../x",
                           "org/..",
                           "org/re po",
                           "org/repo:",
                           "org/repo:a/b"}) {
    EXPECT_FALSE(ParseHubName(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace inferd::store
