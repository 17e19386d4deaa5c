// SPDX-License-Identifier: Apache-2.0
#include "api/files/disk.h"

#include "base/error.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace inferd::api {
Error DiskError(std::string_view what, const std::string& path) {
  return Internal("cannot {} {}: {}", what, path, std::strerror(errno));
}

Result<> MakeFolder(const std::string& path) {
  std::error_code error;
  if (std::filesystem::create_directories(path, error)) {
    std::filesystem::permissions(path, std::filesystem::perms::owner_all, error);
  }
  if (error) {
    return Internal("cannot make the folder {}: {}", path, error.message());
  }
  return {};
}

Result<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error) {
    return Internal("cannot list {}: {}", folder, error.message());
  }
  return names;
}

Result<> SyncFolder(const std::string& folder) {
  const base::UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) {
    return DiskError("sync", folder);
  }
  return {};
}

Result<> WriteDurably(const std::string& folder,
                      const std::string& name,
                      std::string_view content) {
  if (auto written = base::WriteFileAtomic(folder + "/" + name, content); !written.ok()) {
    return Internal("{}", written.error().message());
  }
  return SyncFolder(folder);
}

Result<> LinkFile(const std::string& from, const std::string& to) {
  if (link(from.c_str(), to.c_str()) != 0 && errno != EEXIST) {
    return DiskError("link " + from + " as", to);
  }
  return {};
}

Result<base::UniqueFd> OpenToRead(const std::string& path) {
  base::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return errno == ENOENT ? NotFound("{} is not there", path) : DiskError("open", path);
  }
  return fd;
}

void RemoveFile(const std::string& path) { unlink(path.c_str()); }

Result<base::UniqueFd> LockFile(const std::string& path) {
  base::UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kPrivateFile));
  if (!fd.valid()) {
    return DiskError("open", path);
  }
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return FailedPrecondition("{} is held by another process; give each server its own folder",
                              path);
  }
  return fd;
}

}  // namespace inferd::api
