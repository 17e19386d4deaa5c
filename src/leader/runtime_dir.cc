// SPDX-License-Identifier: Apache-2.0
#include "leader/runtime_dir.h"

#include "base/error.h"
#include "base/log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace inferd::leader {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "inferd-";
constexpr std::string_view kPattern = "inferd-XXXXXX";
constexpr int kTries = 8;

std::string LockPath(const std::string& folder) { return folder + "/lock"; }

void RemoveFolder(const std::string& folder) {
  ::unlink((folder + "/control.sock").c_str());
  ::unlink(LockPath(folder).c_str());
  ::rmdir(folder.c_str());  // fails, rightly, where there is something else
}

bool IsOurs(const fs::path& folder) {
  const std::string name = folder.filename().string();
  struct stat status = {};
  return name.size() == kPattern.size() && name.starts_with(kPrefix) &&
         ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid();
}

/// Folders of leaders that ended without removing theirs. One without a lock file may be of a
/// leader that is just starting: it stays.
void Sweep(const std::string& parent) {
  std::error_code error;
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
    if (!IsOurs(at->path())) {
      continue;
    }
    const std::string folder = at->path().string();
    const base::UniqueFd lock(::open(LockPath(folder).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (lock.get() >= 0 && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) {
      log::Debug("leader", "removed {} of a leader that was killed", folder);
      RemoveFolder(folder);
    }
  }
}

}  // namespace

RuntimeDir::RuntimeDir(RuntimeDir&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}

RuntimeDir& RuntimeDir::operator=(RuntimeDir&& other) noexcept {
  if (this != &other) {
    Remove();
    path_ = std::exchange(other.path_, {});
    lock_ = std::move(other.lock_);
  }
  return *this;
}

Result<RuntimeDir> RuntimeDir::Make(const std::string& parent) {
  const char* tmp = std::getenv("TMPDIR");
  const std::string place = !parent.empty()                  ? parent
                            : tmp != nullptr && *tmp != '\0' ? tmp
                                                             : "/tmp";
  Sweep(place);
  for (int i = 0; i < kTries; ++i) {
    RuntimeDir made;
    made.path_ = place + "/" + std::string(kPattern);
    if (::mkdtemp(made.path_.data()) == nullptr) {
      made.path_.clear();
      break;
    }
    made.lock_ = base::UniqueFd(
        ::open(LockPath(made.path_).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    // Another leader's sweep may hold the lock in this very moment, or have held it: it then
    // removes the folder.
    struct stat status = {};
    if (made.lock_.get() >= 0 && ::flock(made.lock_.get(), LOCK_EX | LOCK_NB) == 0 &&
        ::fstat(made.lock_.get(), &status) == 0 && status.st_nlink > 0) {
      return made;
    }
  }
  return FailedPrecondition(
      "cannot make a private folder {}/{}: set --runtime-dir to a writable place", place, kPattern);
}

void RuntimeDir::Remove() {
  if (!path_.empty()) {
    RemoveFolder(path_);
    path_.clear();
    lock_ = {};
  }
}

}  // namespace inferd::leader
