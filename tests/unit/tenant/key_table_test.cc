// SPDX-License-Identifier: Apache-2.0
#include "tenant/key_table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace inferd::tenant {
namespace {

// Any digest.
const std::string kDigest = "3e1f1a9b5d4bb5d0d2b6d0ee0a9d1c0fbb9d5ea0b3f1d9f9f5f3c5b1c2d3e4f5";

std::string Hex(const KeyDigest& digest) {
  std::string hex;
  for (const auto byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

TEST(KeyTable, HashesAsSha256sumDoes) {
  EXPECT_EQ(Hex(DigestOf("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(KeyTable, FindsByTheWholeTextOnly) {
  auto keys = KeysFromTexts({"first-key", "second-key"});
  ASSERT_TRUE(keys.ok()) << keys.error().message();
  auto table = KeyTable::Make(*std::move(keys));
  ASSERT_TRUE(table.ok());
  ASSERT_NE(table->Find("second-key"), nullptr);
  EXPECT_EQ(table->Find("second-key")->name, "key-2");
  EXPECT_EQ(table->Find("first-key")->name, "key-1");
  for (const char* const wrong : {"", "first-ke", "first-key ", "first-keys", "First-key", "x"}) {
    EXPECT_EQ(table->Find(wrong), nullptr) << wrong;
  }
  EXPECT_EQ(table->Find(std::string(5000, 'a')), nullptr);
  EXPECT_EQ(KeyTable().Find("first-key"), nullptr);
}

TEST(KeyTable, RefusesTwins) {
  auto twice = KeysFromTexts({"same-text", "same-text"});
  ASSERT_TRUE(twice.ok());
  EXPECT_FALSE(KeyTable::Make(*twice).ok());
  auto named = *KeysFromTexts({"text-one", "text-two"});
  named[1].name = named[0].name;
  EXPECT_FALSE(KeyTable::Make(named).ok());
}

TEST(KeyTable, RefusesTextsThatCannotBeKeys) {
  for (const char* const text : {"short", "", "with a blank", "with\nbreak"}) {
    const auto keys = KeysFromTexts({text});
    ASSERT_FALSE(keys.ok()) << text;
    EXPECT_EQ(keys.error().message().find("with"), keys.error().message().find("without"))
        << "an error shows a key";
  }
}

TEST(KeyFile, ReadsEveryField) {
  const auto keys = ParseKeyFile(
      "keys:\n"
      "  - name: alice\n"
      "    sha256: " +
          Hex(DigestOf("secret-of-alice")) +
          "\n"
          "    scopes: [inference, metrics]\n"
          "    models: [a, b@v2]\n"
          "    requests_per_minute: 60\n"
          "    tokens_per_minute: 100000\n"
          "    max_concurrency: 4\n"
          "    priority: -3\n"
          "    weight: 10\n"
          "  - {name: ops, sha256: " +
          Hex(DigestOf("x")) + ", scopes: [admin, gateway]}\n",
      "keys.yaml");
  ASSERT_TRUE(keys.ok()) << keys.error().message();
  ASSERT_EQ(keys->size(), 2U);
  const ApiKey& alice = keys->front();
  EXPECT_EQ(alice.name, "alice");
  EXPECT_EQ(alice.digest, DigestOf("secret-of-alice"));
  EXPECT_TRUE(alice.Has(Scope::kAny));
  EXPECT_TRUE(alice.Has(Scope::kInference));
  EXPECT_TRUE(alice.Has(Scope::kMetrics));
  EXPECT_FALSE(alice.Has(Scope::kAdmin));
  EXPECT_EQ(alice.models, (std::vector<std::string>{"a", "b@v2"}));
  EXPECT_EQ(alice.limits, (KeyLimits{60, 100'000, 4}));
  EXPECT_EQ(alice.priority, -3);
  EXPECT_EQ(alice.weight, 10);
  EXPECT_FALSE(alice.gateway);
  const ApiKey& ops = keys->back();
  EXPECT_TRUE(ops.Has(Scope::kInference));
  EXPECT_TRUE(ops.Has(Scope::kMetrics));
  EXPECT_TRUE(ops.Has(Scope::kAdmin));
  EXPECT_EQ(ops.limits, KeyLimits{});
  EXPECT_EQ(ops.weight, 1);
  EXPECT_TRUE(ops.gateway);
}

struct BadFile {
  std::string text;
  std::string says;
};
class BadKeyFile : public testing::TestWithParam<BadFile> {};

TEST_P(BadKeyFile, IsRefusedWithItsPlace) {
  const auto keys = ParseKeyFile(GetParam().text, "keys.yaml");
  ASSERT_FALSE(keys.ok()) << GetParam().text;
  EXPECT_TRUE(keys.error().message().starts_with("keys.yaml")) << keys.error().message();
  EXPECT_NE(keys.error().message().find(GetParam().says), std::string::npos)
      << keys.error().message();
}

INSTANTIATE_TEST_SUITE_P(
    All,
    BadKeyFile,
    testing::Values(
        BadFile{"", "keys:"},
        BadFile{"[]", "keys:"},
        BadFile{"keys: {}", "keys:"},
        BadFile{"keys: []\nmore: 1", "keys:"},
        BadFile{"keys: [", "line"},
        BadFile{"keys: [5]", "key 1 must be a map"},
        BadFile{"keys: [{name: a}]", "needs sha256"},
        BadFile{"keys: [{sha256: " + kDigest + "}]", "needs a name"},
        BadFile{"keys: [{name: a, sha256: abc}]", "64 hex digits"},
        BadFile{"keys: [{name: a, sha256: " + std::string(64, 'g') + "}]", "64 hex digits"},
        BadFile{"keys: [{name: a, key: secret-text, sha256: " + kDigest + "}]", "'key'"},
        BadFile{"keys: [{name: a, sha256: " + kDigest + ", scopes: inference}]", "list"},
        BadFile{"keys: [{name: a, sha256: " + kDigest + ", scopes: [root]}]", "'root'"},
        BadFile{"keys: [{name: a, sha256: " + kDigest + ", models: m}]", "list of names"},
        BadFile{"keys: [{name: a, sha256: " + kDigest + ", priority: high}]", "priority"},
        BadFile{"keys: [{name: a, sha256: " + kDigest + ", max_concurrency: 0}]", "from 1"},
        BadFile{"keys: [{name: a, sha256: " + kDigest + ", weight: 0}]", "from 1 to 1000"},
        BadFile{"keys: [{name: a, sha256: " + kDigest + ", weight: 1001}]", "from 1 to 1000"},
        BadFile{"keys: [{name: a, sha256: " + kDigest + ", tokens_per_minute: -1}]", "from 1"},
        BadFile{"keys: [{name: a, sha256: " + kDigest + ", requests_per_minute: 1.5}]", "from 1"},
        BadFile{"keys: [{name: \"a\\nb\", sha256: " + kDigest + "}]", "printable"},
        BadFile{"keys: [{name: " + std::string(65, 'a') + ", sha256: " + kDigest + "}]", "64"}));

TEST(KeyFile, ErrorsNeverShowAKey) {
  for (const char* const text : {"keys: [{name: a, sha256: secret-text}]",
                                 "keys: [secret-text]",
                                 "secret-text: [",
                                 "keys: [{name: a, sha256: 'secret-text"}) {
    const auto keys = ParseKeyFile(text, "keys.yaml");
    ASSERT_FALSE(keys.ok());
    EXPECT_EQ(keys.error().message().find("secret-text"), std::string::npos)
        << keys.error().message();
  }
}

}  // namespace
}  // namespace inferd::tenant
