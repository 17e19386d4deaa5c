// SPDX-License-Identifier: Apache-2.0
// One file over HTTP: into NAME.part, resumed where it broke off, checked, then renamed to NAME.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <functional>
#include <string>

namespace inferd::store {

struct DownloadRequest {
  std::string url;
  std::string path;          // final name; its folder must exist
  std::int64_t bytes = 0;    // expected; 0: not known
  std::string sha256;        // expected; empty: not known
  std::string bearer_token;  // empty: none; dropped on redirects to other hosts
  std::int64_t connect_timeout_ms = 15'000;
  std::int64_t stall_timeout_ms = 30'000;
  int max_attempts = 5;
  std::int64_t first_backoff_ms = 500;
  /// (bytes done, bytes in all or 0, computing the checksum); false cancels.
  std::function<bool(std::int64_t, std::int64_t, bool)> progress;
};

/// Blocks. Retries what may pass (connections, stalls, 429, 5xx), not what will not (401, 403, 404,
/// full disk). A file that fails its checksum is deleted and loaded once more from the start.
Result<> Download(const DownloadRequest& request);

/// A small answer into memory; refuses more than max_bytes.
Result<std::string> GetText(const DownloadRequest& request, std::int64_t max_bytes);

}  // namespace inferd::store
