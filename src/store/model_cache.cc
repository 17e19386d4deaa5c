// SPDX-License-Identifier: Apache-2.0
#include "store/model_cache.h"

#include "base/error.h"
#include "base/log.h"
#include "store/list_folder.h"
#include "store/resolve.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <expected>
#include <filesystem>
#include <mutex>
#include <optional>
#include <system_error>

namespace inferd::store {
namespace {

namespace fs = std::filesystem;

constexpr int kPollMs = 100;
constexpr std::string_view kLease = ".lease";
constexpr std::string_view kObjectStores = "s3";
constexpr int kLeaseAttempts = 10;

// The entry that a path of the cache belongs to; nullopt for other paths.
std::optional<fs::path> EntryOf(const std::string& path) {
  const fs::path root = fs::path(ModelCacheDir()).lexically_normal();
  const fs::path inside = fs::path(path).lexically_normal().lexically_relative(root);
  std::vector<fs::path> names(inside.begin(), inside.end());
  if (names.empty() || names.front() == "." || names.front() == "..") {
    return std::nullopt;
  }
  if (names.front() != kObjectStores) {
    return root / names.front();
  }
  // s3/NAME/VERSION
  return names.size() < 3 ? std::nullopt : std::optional(root / names[0] / names[1] / names[2]);
}

std::string LeaseOf(const fs::path& entry) { return entry.string() + std::string(kLease); }

// On a lease that has not been removed meanwhile. Else the errno: EWOULDBLOCK when somebody else
// has it.
std::expected<base::UniqueFd, int> LockLease(const fs::path& entry, int kind) {
  for (int attempt = 0; attempt < kLeaseAttempts; ++attempt) {
    base::UniqueFd fd(::open(LeaseOf(entry).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    struct stat info {};
    if (!fd.valid() || ::flock(fd.get(), kind | LOCK_NB) != 0) {
      return std::unexpected(errno);
    }
    if (::fstat(fd.get(), &info) == 0 && info.st_nlink > 0) {
      return fd;
    }
  }
  return std::unexpected(EWOULDBLOCK);
}

std::int64_t BytesOnDisk(const fs::path& path) {
  constexpr std::int64_t kBlock = 512;
  struct stat info {};
  std::error_code error;
  std::int64_t bytes = 0;
  if (::lstat(path.c_str(), &info) == 0) {
    bytes += static_cast<std::int64_t>(info.st_blocks) * kBlock;
  }
  if (fs::is_directory(fs::symlink_status(path, error))) {
    fs::recursive_directory_iterator at(path, fs::directory_options::skip_permission_denied, error);
    for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
      if (::lstat(at->path().c_str(), &info) == 0) {
        bytes += static_cast<std::int64_t>(info.st_blocks) * kBlock;
      }
    }
  }
  return bytes;
}

std::int64_t UsedNs(const fs::path& entry) {
  struct stat info {};
  if (::stat(LeaseOf(entry).c_str(), &info) != 0 && ::stat(entry.c_str(), &info) != 0) {
    return 0;
  }
  constexpr std::int64_t kSecond = 1'000'000'000;
  return static_cast<std::int64_t>(info.st_mtim.tv_sec) * kSecond + info.st_mtim.tv_nsec;
}

bool IsEntry(const fs::path& path) {
  const std::string name = path.filename().string();
  constexpr std::string_view kOther[] = {kLease, ".part", ".verified"};
  return name != kObjectStores &&
         std::ranges::none_of(kOther, [&](std::string_view end) { return name.ends_with(end); });
}

void AddEntry(const fs::path& path, std::vector<CacheEntry>* entries) {
  if (IsEntry(path)) {
    entries->push_back({path.string(), BytesOnDisk(path), UsedNs(path)});
  }
}

// False if somebody uses it.
bool Remove(const CacheEntry& entry) {
  const auto lease = LockLease(entry.path, LOCK_EX);
  if (!lease) {
    return false;
  }
  std::error_code error;
  fs::remove_all(entry.path, error);
  if (error) {
    log::Warning("store", "cannot remove {}: {}", entry.path, error.message());
    return false;
  }
  ::unlink(LeaseOf(entry.path).c_str());
  log::Info("store",
            "removed {} ({} bytes), the least recently used model of the cache",
            entry.path,
            entry.bytes);
  return true;
}

}  // namespace

Result<FileLock> FileLock::Exclusive(const std::string& path,
                                     const std::function<bool()>& waiting) {
  base::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return Unavailable("cannot open {}: {}", path, std::strerror(errno));
  }
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return Unavailable("cannot lock {}: {}", path, std::strerror(errno));
    }
    if (!waiting()) {
      return Cancelled("cancelled while another process loads the model ({})", path);
    }
    ::poll(nullptr, 0, kPollMs);
  }
  return FileLock(std::move(fd));
}

std::vector<CacheEntry> ListCache() {
  std::vector<CacheEntry> entries;
  const fs::path root = ModelCacheDir();
  for (const fs::path& entry : ListFolder(root)) {
    AddEntry(entry, &entries);
  }
  for (const fs::path& name : ListFolder(root / kObjectStores)) {
    for (const fs::path& version : ListFolder(name)) {
      std::error_code ignored;
      if (fs::is_directory(version, ignored)) {
        AddEntry(version, &entries);
      }
    }
  }
  std::ranges::sort(entries, {}, &CacheEntry::used_ns);
  return entries;
}

Result<> HoldModel(const std::string& path) {
  static std::mutex mutex;
  static std::vector<base::UniqueFd> held;  // until the process ends
  const auto entry = EntryOf(path);
  std::error_code error;
  if (!entry || !fs::exists(entry->parent_path(), error)) {
    return {};
  }
  auto lease = LockLease(*entry, LOCK_SH);
  if (!lease) {
    if (lease.error() == EWOULDBLOCK) {
      return Unavailable("{} is just being removed from the cache; start again", path);
    }
    // Nobody removes anything from a cache that cannot be written.
    if (lease.error() != EROFS && lease.error() != EACCES) {
      log::Warning(
          "store",
          "cannot lock {}: {}; a server with --model-cache-bytes may remove {} while it is "
          "in use",
          LeaseOf(*entry),
          std::strerror(lease.error()),
          path);
    }
    return {};
  }
  ::futimens(lease->get(), nullptr);
  const std::lock_guard lock(mutex);
  held.push_back(*std::move(lease));
  return {};
}

Result<> MakeRoom(const std::string& path, std::int64_t bytes, std::int64_t cache_bytes) {
  if (cache_bytes <= 0) {
    return {};
  }
  if (bytes > cache_bytes) {
    return ResourceExhausted(
        "{} has {} bytes, more than --model-cache-bytes {} allows", path, bytes, cache_bytes);
  }
  const auto own = EntryOf(path);
  std::int64_t total = bytes;
  std::vector<CacheEntry> entries = ListCache();
  std::erase_if(entries, [&](const CacheEntry& entry) { return own && *own == entry.path; });
  for (const CacheEntry& entry : entries) {
    total += entry.bytes;
  }
  for (const CacheEntry& entry : entries) {
    if (total > cache_bytes && Remove(entry)) {
      total -= entry.bytes;
    }
  }
  if (total > cache_bytes) {
    return ResourceExhausted(
        "{} has {} bytes, and the models of the cache that are in use {}: together more than "
        "--model-cache-bytes {} allows",
        path,
        bytes,
        total - bytes,
        cache_bytes);
  }
  return {};
}

}  // namespace inferd::store
