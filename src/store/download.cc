// SPDX-License-Identifier: Apache-2.0
#include "store/download.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "store/http.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace inferd::store {
namespace {

HttpRequest ToHttp(const DownloadRequest& request) {
  HttpRequest http;
  http.url = request.url;
  if (!request.bearer_token.empty()) {
    http.headers.push_back("Authorization: Bearer " + request.bearer_token);
  }
  http.connect_timeout_ms = request.connect_timeout_ms;
  http.stall_timeout_ms = request.stall_timeout_ms;
  return http;
}

Error ToError(const DownloadRequest& request, const HttpAnswer& answer) {
  if (answer.status == 401 || answer.status == 403) {
    return PermissionDenied(
        "{}: status {}; if the model is gated, accept its licence on its page and set HF_TOKEN",
        request.url,
        answer.status);
  }
  if (answer.status == 404) {
    return NotFound("{}: no such file or repository (status 404)", request.url);
  }
  return Unavailable("{}: {}", request.url, answer.message);
}

Error Cancelled(const DownloadRequest& request) {
  return inferd::Cancelled("{}: cancelled; what was loaded is kept for the next time", request.url);
}

// The server's Retry-After is a lower bound.
Result<> WaitBeforeRetry(const DownloadRequest& request,
                         int attempt,
                         std::int64_t retry_after_ms,
                         std::int64_t done) {
  const auto alive = [&] {
    return !request.progress || request.progress(done, request.bytes, false);
  };
  if (!PauseBeforeRetry(request.first_backoff_ms, attempt, retry_after_ms, alive)) {
    return Cancelled(request);
  }
  return {};
}

// NAME.part, opened and locked: a second fetch of the same file is refused instead of mixing bytes.
Result<base::UniqueFd> OpenPart(const std::string& part) {
  base::UniqueFd fd(::open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return Unavailable("cannot open {}: {}", part, std::strerror(errno));
  }
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return AlreadyExists("{} is being written by another fetch; wait for it or stop it", part);
  }
  return fd;
}

std::int64_t SizeOf(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? static_cast<std::int64_t>(info.st_size) : 0;
}

Result<> CheckSpace(const DownloadRequest& request, std::int64_t have) {
  struct statvfs disk {};
  const std::string folder = std::filesystem::path(request.path).parent_path().string();
  if (request.bytes <= 0 || ::statvfs(folder.c_str(), &disk) != 0) {
    return {};
  }
  const auto free_bytes =
      static_cast<std::int64_t>(disk.f_bavail) * static_cast<std::int64_t>(disk.f_frsize);
  if (free_bytes < request.bytes - have) {
    return ResourceExhausted("{} needs {} more bytes, but {} has {} free",
                             request.path,
                             request.bytes - have,
                             folder,
                             free_bytes);
  }
  return {};
}

bool WriteAll(int fd, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t put = ::write(fd, data, size);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      return false;
    }
    data += put;
    size -= static_cast<std::size_t>(put);
  }
  return true;
}

bool Truncate(int fd, std::int64_t size) {
  return ::ftruncate(fd, static_cast<off_t>(size)) == 0 &&
         ::lseek(fd, static_cast<off_t>(size), SEEK_SET) >= 0;
}

// Loads until the part file has all bytes.
Result<> FillPart(const DownloadRequest& request, HttpConnection* connection, int fd) {
  using End = HttpAnswer::End;
  int fruitless = 0;
  for (;;) {
    std::int64_t have = SizeOf(fd);
    if (request.bytes > 0 && have > request.bytes) {
      have = 0;  // not the file that is wanted
    }
    if (!Truncate(fd, have)) {
      return Unavailable("cannot write {}.part: {}", request.path, std::strerror(errno));
    }
    if (request.bytes > 0 && have == request.bytes) {
      return {};
    }
    bool too_long = false;
    std::int64_t end = have;
    HttpRequest http = ToHttp(request);
    http.offset = have;
    http.write = [&](std::string_view data) {
      end += static_cast<std::int64_t>(data.size());
      too_long = request.bytes > 0 && end > request.bytes;
      return !too_long && WriteAll(fd, data.data(), data.size());
    };
    http.alive = [&](std::int64_t received, std::int64_t total) {
      const std::int64_t all = request.bytes > 0 ? request.bytes : (total > 0 ? have + total : 0);
      return !request.progress || request.progress(have + received, all, false);
    };
    const HttpAnswer answer = connection->Perform(http);
    if (answer.end == End::kCancelled) {
      return Cancelled(request);
    }
    if (too_long) {
      Truncate(fd, 0);
      return DataLoss("{} is longer than the {} bytes expected", request.url, request.bytes);
    }
    if (answer.end == End::kWriteFailed) {
      return Unavailable("cannot write {}.part: {}", request.path, std::strerror(errno));
    }
    const bool ended = answer.end == End::kDone;
    if (ended && (request.bytes <= 0 || SizeOf(fd) == request.bytes)) {
      return {};
    }
    // The server does not resume, or what is here is not a beginning of its file: from the start.
    if (have > 0 && (answer.end == End::kRangeIgnored || answer.status == 416)) {
      Truncate(fd, 0);
      continue;
    }
    if (ended) {
      Truncate(fd, 0);
      return DataLoss("{} has {} bytes, but {} are expected",
                      request.url,
                      have + answer.received,
                      request.bytes);
    }
    fruitless = answer.received > 0 ? 0 : fruitless + 1;
    if (!answer.MayPass() || fruitless >= request.max_attempts) {
      return ToError(request, answer);
    }
    log::Warning("store", "{}: {}; resuming at byte {}", request.url, answer.message, SizeOf(fd));
    INFERD_TRY(WaitBeforeRetry(request, fruitless, answer.retry_after_ms, SizeOf(fd)));
  }
}

}  // namespace

Result<> Download(const DownloadRequest& request) {
  const std::string part = request.path + ".part";
  INFERD_ASSIGN(const base::UniqueFd fd, OpenPart(part));
  INFERD_TRY(CheckSpace(request, SizeOf(fd.get())));
  HttpConnection connection;
  constexpr int kRounds = 2;
  for (int round = 1; round <= kRounds; ++round) {
    INFERD_TRY(FillPart(request, &connection, fd.get()));
    if (request.sha256.empty()) {
      break;
    }
    const std::int64_t size = SizeOf(fd.get());
    if (request.progress && !request.progress(size, size, true)) {
      return Cancelled(request);
    }
    INFERD_ASSIGN(const std::string actual, base::Sha256OfFile(part));
    if (actual == request.sha256) {
      break;
    }
    if (!Truncate(fd.get(), 0) || round == kRounds) {
      ::unlink(part.c_str());
      return DataLoss("{}: sha256 is {}, but {} is expected; the download was deleted",
                      request.url,
                      actual,
                      request.sha256);
    }
    log::Warning(
        "store", "{}: sha256 does not match; loading it again from the start", request.url);
  }
  if (::fsync(fd.get()) != 0 || ::rename(part.c_str(), request.path.c_str()) != 0) {
    return Unavailable("cannot finish {}: {}", request.path, std::strerror(errno));
  }
  return {};
}

Result<std::string> GetText(const DownloadRequest& request, std::int64_t max_bytes) {
  using End = HttpAnswer::End;
  HttpConnection connection;
  for (int attempt = 1;; ++attempt) {
    std::string text;
    HttpRequest http = ToHttp(request);
    http.write = [&](std::string_view data) {
      if (text.size() + data.size() > static_cast<std::size_t>(max_bytes)) {
        return false;
      }
      text.append(data);
      return true;
    };
    http.alive = [&](std::int64_t received, std::int64_t total) {
      return !request.progress || request.progress(received, total, false);
    };
    const HttpAnswer answer = connection.Perform(http);
    if (answer.end == End::kCancelled) {
      return Cancelled(request);
    }
    if (answer.end == End::kWriteFailed) {
      return ResourceExhausted("{}: the answer has more than {} bytes", request.url, max_bytes);
    }
    if (answer.end == End::kDone) {
      return text;
    }
    if (!answer.MayPass() || attempt >= request.max_attempts) {
      return ToError(request, answer);
    }
    INFERD_TRY(WaitBeforeRetry(request, attempt, answer.retry_after_ms, 0));
  }
}

}  // namespace inferd::store
