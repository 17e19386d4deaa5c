// SPDX-License-Identifier: Apache-2.0
// The key file and its reload while a gate is in use.
#include "app/tenancy.h"

#include "base/file.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>

namespace inferd::app {
namespace {

std::string Entry(const std::string& name, const std::string& key) {
  std::string hex;
  for (const auto byte : tenant::DigestOf(key)) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return "  - {name: " + name + ", sha256: " + hex + "}\n";
}

template <class F>
bool Eventually(F&& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    poll(nullptr, 0, 10);
  }
  return true;
}

bool Knows(const Tenancy& tenancy, const std::string& key) {
  tenant::Refusal refusal;
  return tenancy.gate->Admit({.key = key, .scope = tenant::Scope::kAny}, &refusal).ok();
}

TEST(Tenancy, NothingAskedForIsNoGate) {
  const auto tenancy = OpenTenancy({}, "m", "v");
  ASSERT_TRUE(tenancy.ok());
  EXPECT_EQ(tenancy->gate, nullptr);
}

TEST(Tenancy, ObjectivesHaveBoundedPriorities) {
  TenantConfig config;
  config.trust_tenant_header = true;
  for (const char* const good : {"a=1000000", "a=-1000000"}) {
    config.inference_objectives = {good};
    EXPECT_TRUE(OpenTenancy(config, "m", "v").ok()) << good;
  }
  for (const char* const bad : {"a=1000001", "a=-1000001", "a=-2147483648", "a=1x", "=1", "a"}) {
    config.inference_objectives = {bad};
    EXPECT_FALSE(OpenTenancy(config, "m", "v").ok()) << bad;
  }
}

TEST(Tenancy, ReloadsTheFileAndKeepsTheOldKeysOverABadOne) {
  const std::string path = testing::TempDir() + "inferd-keys.yaml";
  ASSERT_TRUE(base::WriteFileAtomic(path, "keys:\n" + Entry("a", "first-key")).ok());
  TenantConfig config;
  config.api_key = {"from-the-flag"};
  config.api_key_file = path;
  const auto tenancy = OpenTenancy(config, "m", "v");
  ASSERT_TRUE(tenancy.ok()) << tenancy.error().message();
  EXPECT_TRUE(Knows(*tenancy, "first-key"));
  EXPECT_TRUE(Knows(*tenancy, "from-the-flag"));
  EXPECT_FALSE(Knows(*tenancy, "second-key"));
  ASSERT_TRUE(base::WriteFileAtomic(path, "keys: [nonsense]\n").ok());
  ASSERT_TRUE(base::WriteFileAtomic(path, "keys:\n" + Entry("b", "second-key")).ok());
  EXPECT_TRUE(Eventually([&] { return Knows(*tenancy, "second-key"); }));
  EXPECT_FALSE(Knows(*tenancy, "first-key"));
  EXPECT_TRUE(Knows(*tenancy, "from-the-flag"));
}

TEST(Tenancy, BadKeysAreNotStartedWith) {
  TenantConfig config;
  config.api_key_file = testing::TempDir() + "inferd-keys-absent.yaml";
  EXPECT_FALSE(OpenTenancy(config, "m", "v").ok());
  config.api_key_file = testing::TempDir() + "inferd-keys-empty.yaml";
  ASSERT_TRUE(base::WriteFileAtomic(config.api_key_file, "keys: []\n").ok());
  EXPECT_FALSE(OpenTenancy(config, "m", "v").ok());
  config = {};
  config.api_key = {"short"};
  EXPECT_FALSE(OpenTenancy(config, "m", "v").ok());
}

TEST(FileWatch, TellsOfEveryKindOfChange) {
  const std::string path = testing::TempDir() + "inferd-watched";
  ASSERT_TRUE(base::WriteFileAtomic(path, "one").ok());
  std::atomic<int> changes{0};
  const FileWatch watch({path}, [&] { changes.fetch_add(1); }, /*interval_ms=*/5);
  ASSERT_TRUE(base::WriteFileAtomic(path, "two").ok());
  EXPECT_TRUE(Eventually([&] { return changes.load() == 1; }));
  ASSERT_EQ(std::remove(path.c_str()), 0);
  EXPECT_TRUE(Eventually([&] { return changes.load() == 2; }));
  ASSERT_TRUE(base::WriteFileAtomic(path, "three").ok());
  EXPECT_TRUE(Eventually([&] { return changes.load() == 3; }));
}

}  // namespace
}  // namespace inferd::app
