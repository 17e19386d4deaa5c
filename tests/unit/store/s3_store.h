// SPDX-License-Identifier: Apache-2.0
// A test with an object store on loopback, and an empty cache for what is read from it.
#pragma once

#include "base/digest.h"
#include "store/fetch.h"
#include "unit/store/environment.h"
#include "unit/store/file_server.h"
#include "unit/store/files.h"

#include <gtest/gtest.h>

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::store {

inline std::string Md5(std::string_view content) {
  auto digest = *base::Digest::Make(base::DigestKind::kMd5);
  digest.Update(std::as_bytes(std::span(content)));
  return base::ToHex(digest.Finish());
}

class S3StoreTest : public testing::Test {
 protected:
  S3StoreTest()
      : cache_("INFERD_CACHE", dir_.path()),
        catalog_("INFERD_CATALOG", ""),
        endpoint_("AWS_ENDPOINT_URL", store_.endpoint()),
        special_("AWS_ENDPOINT_URL_S3", ""),
        id_("AWS_ACCESS_KEY_ID", "id"),
        secret_("AWS_SECRET_ACCESS_KEY", "secret"),
        tensors_(F32File(TinyHfTensors())) {
    options_.max_attempts = 2;
    options_.first_backoff_ms = 1;
    options_.connections = 1;
  }

  /// Serves the objects, and the listing of the prefix with the ETags of their contents.
  void Serve(const std::string& prefix, const std::map<std::string, std::string>& objects) {
    std::string xml = "<ListBucketResult><IsTruncated>false</IsTruncated>";
    for (const auto& [key, content] : objects) {
      const std::string etag = "\"" + Md5(content) + "\"";
      store_.Serve("/models/" + key, content, "ETag: " + etag + "\r\n");
      xml += "<Contents><Key>" + key + "</Key><Size>" + std::to_string(content.size()) +
             "</Size><ETag>" + etag + "</ETag></Contents>";
    }
    store_.Serve("/models?list-type=2&prefix=" + prefix, xml + "</ListBucketResult>");
  }
  void ServeTiny() {
    Serve("tiny%2F",
          {{"tiny/config.json", TinyHfConfig()},
           {"tiny/model.safetensors", tensors_},
           {"tiny/optimizer.pt", "not wanted"},
           {"tiny/step1/model.safetensors", "not wanted"}});
  }
  std::vector<std::string> Gets() const {
    std::vector<std::string> gets;
    for (const std::string& request : store_.Requests()) {
      if (request.starts_with("GET ") && request.find("list-type") == std::string::npos) {
        gets.push_back(request);
      }
    }
    return gets;
  }

  TempDir dir_;
  FakeHub store_;
  SetEnvironment cache_;
  SetEnvironment catalog_;
  SetEnvironment endpoint_;
  SetEnvironment special_;
  SetEnvironment id_;
  SetEnvironment secret_;
  std::string tensors_;
  FetchOptions options_;
};

}  // namespace inferd::store
