// SPDX-License-Identifier: Apache-2.0
// `inferd fetch`: downloads a model into the cache. Resumes, retries, verifies checksums, never
// leaves half a file under its final name.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <functional>
#include <string>

namespace inferd::store {

struct FetchProgress {
  std::string file;    // the one being loaded
  int file_index = 0;  // from 0
  int num_files = 1;
  std::int64_t done_bytes = 0;   // of this file, what was resumed included
  std::int64_t total_bytes = 0;  // of this file; 0: not known
  bool verifying = false;        // computing the checksum
};

struct FetchOptions {
  /// Default $HF_ENDPOINT, else https://huggingface.co.
  std::string endpoint;
  /// Default $HF_TOKEN. Sent to the endpoint only, never to where it redirects.
  std::string token;
  /// Default ModelCacheDir().
  std::string folder;
  std::int64_t connect_timeout_ms = 15'000;
  /// A transfer slower than 1 KiB/s for this long is broken off and resumed.
  std::int64_t stall_timeout_ms = 30'000;
  /// Attempts without a single new byte before giving up.
  int max_attempts = 5;
  std::int64_t first_backoff_ms = 500;
  /// Of an object store: connections at once, and how long none may bring a byte.
  int connections = 8;
  std::int64_t give_up_ms = 120'000;
  /// Of all models in the cache; those not used for the longest time are removed for a new one. 0:
  /// no bound.
  std::int64_t cache_bytes = 0;
  /// Called often, from the calling thread. False cancels; what was loaded stays for the next time.
  std::function<bool(const FetchProgress&)> progress;
};

/// Downloads the model that `name` (catalog name, hub name, hf:// or s3:// name) stands for, unless
/// it is there. Returns its path.
Result<std::string> Fetch(const std::string& name, const FetchOptions& options);

}  // namespace inferd::store
