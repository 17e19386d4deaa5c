// SPDX-License-Identifier: Apache-2.0
// A server with a folder for files and batches, and keys when a test wants some.
#pragma once

#include "base/clock.h"
#include "server_fixture.h"
#include "tenant/gate.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace inferd::api {

class StorageTest : public ServerTest {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "storage.XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    storage_.folder = folder;
  }
  void TearDown() override {
    ServerTest::TearDown();
    std::filesystem::remove_all(storage_.folder);
  }

  void StartWithFiles(HttpOptions options = {}) {
    options.port = 0;
    options.access_log = false;
    auto started = Server::Start(options, TestModel(), &service_, gate_, storage_);
    ASSERT_TRUE(started.ok()) << started.error().message();
    server_ = *std::move(started);
    port_ = server_->port();
  }
  /// Names of keys; the text of key x is text-of-x.
  void UseKeysNamed(const std::vector<std::string>& names) {
    std::vector<tenant::ApiKey> keys;
    for (const std::string& name : names) {
      tenant::ApiKey key;
      key.name = name;
      key.digest = tenant::DigestOf("text-of-" + name);
      keys.push_back(std::move(key));
    }
    UseKeys(std::move(keys));
  }
  void UseKeys(std::vector<tenant::ApiKey> keys) {
    auto table = tenant::KeyTable::Make(std::move(keys));
    ASSERT_TRUE(table.ok());
    gate_ = std::make_shared<tenant::Gate>(
        tenant::GateOptions{.model_name = "m", .model_version = "", .objectives = {}},
        *std::move(table),
        nullptr,
        &base::SteadyClock::Get());
  }

  /// As the key that was named last by As().
  Reply Send(const std::string& method,
             const std::string& path,
             const std::string& body = "",
             const std::string& content_type = "application/json") {
    HttpClient client(port_);
    std::string bytes = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n";
    if (!key_.empty()) {
      bytes += "Authorization: Bearer text-of-" + key_ + "\r\n";
    }
    if (method == "POST") {
      bytes += "Content-Type: " + content_type +
               "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
    }
    client.Send(bytes + "\r\n" + body);
    return client.Read();
  }
  void As(const std::string& key) { key_ = key; }

  static std::string FormOf(const std::string& content, const std::string& more = "") {
    return "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n" + more +
           "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n" +
           content + "\r\n--b--\r\n";
  }
  Reply UploadForm(const std::string& form) {
    return Send("POST", "/v1/files", form, "multipart/form-data; boundary=b");
  }
  /// The file's id.
  std::string Upload(const std::string& content) {
    const Reply reply = UploadForm(FormOf(content));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.status == 200 ? Json::parse(reply.body)["id"].get<std::string>() : "";
  }

  StorageOptions storage_;
  std::shared_ptr<tenant::Gate> gate_;  // null: no keys
  std::string key_;
};

}  // namespace inferd::api
