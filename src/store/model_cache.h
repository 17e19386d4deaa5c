// SPDX-License-Identifier: Apache-2.0
// The model cache as all processes of a host share it: who loads, who uses what, and what goes when
// it grows too large. An entry is a file or folder of ModelCacheDir(), or a version below s3/; its
// lease, ENTRY.lease, is locked shared by who uses it (HoldModel of store/resolve.h) and
// exclusively by who removes it. Included by .cc files of this room and its tests.
#pragma once

#include "base/file.h"
#include "inferd/result.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace inferd::store {

/// An flock on a file; free when this is destroyed, or when the process ends.
class FileLock {
 public:
  /// Makes the file if need be and waits until nobody else has it exclusively. Calls `waiting`
  /// every 100 ms meanwhile; false gives up.
  static Result<FileLock> Exclusive(const std::string& path, const std::function<bool()>& waiting);

 private:
  explicit FileLock(base::UniqueFd fd) : fd_(std::move(fd)) {}
  base::UniqueFd fd_;
};

struct CacheEntry {
  std::string path;
  std::int64_t bytes = 0;    // on the disk
  std::int64_t used_ns = 0;  // wall clock, when somebody last began to use it
};

/// What is in the cache, the least recently used first. Partial downloads of the hub do not count.
std::vector<CacheEntry> ListCache();

/// Removes entries that nobody uses, the least recently used first, until `path`, which will have
/// `bytes`, fits into `cache_bytes` with the others; 0: no bound. ResourceExhausted, without
/// removing anything, when `bytes` alone is too much; or when what is left is in use.
Result<> MakeRoom(const std::string& path, std::int64_t bytes, std::int64_t cache_bytes);

}  // namespace inferd::store
