// SPDX-License-Identifier: Apache-2.0
#include "store/model_cache.h"

#include "base/error.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace inferd::store {
namespace {

constexpr int kPollMs = 100;

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

}  // namespace inferd::store
