// SPDX-License-Identifier: Apache-2.0
// Who uses what in the model cache: locks between the processes of this host. Included by .cc files
// of this room and its tests.
#pragma once

#include "base/file.h"
#include "inferd/result.h"

#include <cstdint>
#include <functional>
#include <string>

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

}  // namespace inferd::store
