// SPDX-License-Identifier: Apache-2.0
// Computes the checksums of part files while they arrive, beside the connections that read them.
// Included by .cc files of this room and its tests.
#pragma once

#include "inferd/result.h"
#include "store/checksum.h"
#include "store/ranged_read.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace inferd::store {

/// Starts up to four threads, each with a connection for its questions about the objects. A file
/// whose bytes are right, or of which the store gives no checksum, gets its name at once.
class ObjectVerifier {
 public:
  /// `client` and `reads` must outlive this.
  ObjectVerifier(const S3Client& client, const std::vector<RangedRead>& reads);
  /// Stops what still waits, asks or computes.
  ~ObjectVerifier();
  ObjectVerifier(const ObjectVerifier&) = delete;
  ObjectVerifier& operator=(const ObjectVerifier&) = delete;

  /// Waits for all files, of which every byte must be there or PartFile::Stop called. Per file:
  /// empty when it has its name; what is wrong with its bytes; or an error of the store or the
  /// disk. `alive` is called every 100 ms from the calling thread; false stops all: Cancelled.
  Result<std::vector<std::string>> Finish(const std::function<bool()>& alive);

 private:
  void Stop();
  void Join();
  void Work();
  Result<> Verify(std::size_t index);
  Error Stopped(const S3Object& object) const;
  Result<std::optional<ObjectChecksum>> Expected(HttpConnection* connection,
                                                 const S3Object& object) const;

  std::atomic<bool> stop_ = false;
  const S3Client client_;  // asks until stop_
  const std::vector<RangedRead>& reads_;
  std::atomic<std::size_t> next_ = 0;
  std::mutex mutex_;  // guards working_
  std::condition_variable done_;
  std::size_t working_ = 0;
  // Each element is written by one thread, and read after all are joined.
  std::vector<std::string> wrong_;
  std::vector<Result<>> results_;
  std::vector<std::thread> threads_;
};

}  // namespace inferd::store
