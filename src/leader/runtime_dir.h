// SPDX-License-Identifier: Apache-2.0
// The leader's private folder: its control socket lies there, for the workers of this host.
#pragma once

#include "base/file.h"
#include "inferd/result.h"

#include <string>

namespace inferd::leader {

/// A folder PARENT/inferd-XXXXXX of mode 0700, removed with the object. It holds a locked file as
/// long as its owner lives, by which the next leader knows the folders of leaders that were killed
/// and removes them. One thread.
class RuntimeDir {
 public:
  RuntimeDir() = default;
  RuntimeDir(RuntimeDir&& other) noexcept;
  RuntimeDir& operator=(RuntimeDir&& other) noexcept;
  ~RuntimeDir() { Remove(); }

  /// Below `parent`; empty: below TMPDIR or /tmp. kFailedPrecondition, naming --runtime-dir, where
  /// nothing can be written.
  static Result<RuntimeDir> Make(const std::string& parent);

  /// Empty before Make and after Remove.
  const std::string& path() const { return path_; }
  std::string socket_path() const { return path_ + "/control.sock"; }

  /// Unlinks the socket and the folder.
  void Remove();

 private:
  std::string path_;
  base::UniqueFd lock_;
};

}  // namespace inferd::leader
