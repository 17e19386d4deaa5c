// SPDX-License-Identifier: Apache-2.0
#include "store/download.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>

namespace inferd::store {
namespace {

constexpr long kSlowBytesPerSecond = 1024;
constexpr long kMaxRedirects = 10;
constexpr std::int64_t kMaxBackoffMs = 30'000;
constexpr std::int64_t kMaxRetryAfterMs = 120'000;

using CurlHandle = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;
using CurlList = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;

void InitCurlOnce() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

// One attempt at a transfer, from `offset` on.
struct Transfer {
  const DownloadRequest& request;
  std::int64_t offset = 0;
  std::int64_t received = 0;
  std::function<bool(const char*, std::size_t)> write;
  bool write_failed = false;
  bool cancelled = false;
  bool stalled = false;
  // When `seen` bytes had been received for the first time.
  std::int64_t seen = -1;
  std::chrono::steady_clock::time_point seen_at = {};
};

std::size_t OnData(char* data, std::size_t size, std::size_t count, void* user) {
  auto* transfer = static_cast<Transfer*>(user);
  const std::size_t bytes = size * count;
  if (!transfer->write(data, bytes)) {
    transfer->write_failed = true;
    return 0;
  }
  transfer->received += static_cast<std::int64_t>(bytes);
  return bytes;
}

int OnProgress(void* user,
               curl_off_t total,
               curl_off_t /*down_now*/,
               curl_off_t /*up_total*/,
               curl_off_t /*up_now*/) {
  auto* transfer = static_cast<Transfer*>(user);
  const auto now = std::chrono::steady_clock::now();
  if (transfer->received != transfer->seen) {
    transfer->seen = transfer->received;
    transfer->seen_at = now;
  } else if (now - transfer->seen_at >
             std::chrono::milliseconds(transfer->request.stall_timeout_ms)) {
    transfer->stalled = true;
    return 1;
  }
  if (!transfer->request.progress) {
    return 0;
  }
  const std::int64_t all = transfer->request.bytes > 0 ? transfer->request.bytes
                                                       : (total > 0 ? transfer->offset + total : 0);
  if (!transfer->request.progress(transfer->offset + transfer->received, all, false)) {
    transfer->cancelled = true;
    return 1;
  }
  return 0;
}

struct Outcome {
  CURLcode code = CURLE_OK;
  long status = 0;
  std::int64_t retry_after_ms = 0;
  std::string message;
};

Outcome Perform(Transfer* transfer) {
  InitCurlOnce();
  const DownloadRequest& request = transfer->request;
  const CurlHandle curl(curl_easy_init(), &curl_easy_cleanup);
  CurlList headers(nullptr, &curl_slist_free_all);
  char error_text[CURL_ERROR_SIZE] = {};
  if (!request.bearer_token.empty()) {
    headers.reset(
        curl_slist_append(nullptr, ("Authorization: Bearer " + request.bearer_token).c_str()));
    curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  }
  curl_easy_setopt(curl.get(), CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, error_text);
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_MAXREDIRS, kMaxRedirects);
  curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl.get(), CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl.get(), CURLOPT_USERAGENT, "inferd");
  curl_easy_setopt(
      curl.get(), CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(request.connect_timeout_ms));
  curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_LIMIT, kSlowBytesPerSecond);
  curl_easy_setopt(curl.get(),
                   CURLOPT_LOW_SPEED_TIME,
                   static_cast<long>(std::max<std::int64_t>(request.stall_timeout_ms / 1000, 1)));
  curl_easy_setopt(
      curl.get(), CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(transfer->offset));
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, &OnData);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, transfer);
  curl_easy_setopt(curl.get(), CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFOFUNCTION, &OnProgress);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFODATA, transfer);
  Outcome outcome;
  outcome.code = curl_easy_perform(curl.get());
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &outcome.status);
  curl_off_t retry_after_s = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RETRY_AFTER, &retry_after_s);
  outcome.retry_after_ms = std::min<std::int64_t>(retry_after_s * 1000, kMaxRetryAfterMs);
  outcome.message = error_text[0] != '\0' ? error_text : curl_easy_strerror(outcome.code);
  if (transfer->stalled) {
    outcome.code = CURLE_OPERATION_TIMEDOUT;
    outcome.message = fmt::format("no data for {} ms", request.stall_timeout_ms);
  }
  return outcome;
}

bool MayPass(const Outcome& outcome) {
  if (outcome.code == CURLE_HTTP_RETURNED_ERROR) {
    return outcome.status == 408 || outcome.status == 429 || outcome.status >= 500;
  }
  switch (outcome.code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SSL_CONNECT_ERROR:
      return true;
    default:
      return false;
  }
}

Error ToError(const DownloadRequest& request, const Outcome& outcome) {
  if (outcome.status == 401 || outcome.status == 403) {
    return PermissionDenied(
        "{}: status {}; if the model is gated, accept its licence on its page and set HF_TOKEN",
        request.url,
        outcome.status);
  }
  if (outcome.status == 404) {
    return NotFound("{}: no such file or repository (status 404)", request.url);
  }
  return Unavailable("{}: {}", request.url, outcome.message);
}

Error Cancelled(const DownloadRequest& request) {
  return inferd::Cancelled("{}: cancelled; what was loaded is kept for the next time", request.url);
}

// Exponential backoff with jitter, answering a cancel. The server's Retry-After is a lower bound.
Result<> WaitBeforeRetry(const DownloadRequest& request,
                         int attempt,
                         std::int64_t retry_after_ms,
                         std::int64_t done) {
  static thread_local std::minstd_rand random{std::random_device{}()};
  const std::int64_t base_ms =
      std::min(request.first_backoff_ms << std::min(attempt, 16), kMaxBackoffMs);
  std::int64_t left_ms = std::uniform_int_distribution<std::int64_t>(base_ms / 2, base_ms)(random);
  left_ms = std::max(left_ms, retry_after_ms);
  std::mutex mutex;
  std::condition_variable never;
  while (left_ms > 0) {
    if (request.progress && !request.progress(done, request.bytes, false)) {
      return Cancelled(request);
    }
    const std::int64_t slice_ms = std::min<std::int64_t>(left_ms, 100);
    std::unique_lock lock(mutex);
    never.wait_for(lock, std::chrono::milliseconds(slice_ms));
    left_ms -= slice_ms;
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
Result<> FillPart(const DownloadRequest& request, int fd) {
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
    Transfer transfer{.request = request, .offset = have, .write = {}};
    transfer.write = [&](const char* data, std::size_t size) {
      const auto end = transfer.offset + transfer.received + static_cast<std::int64_t>(size);
      return (request.bytes <= 0 || end <= request.bytes) && WriteAll(fd, data, size);
    };
    const Outcome outcome = Perform(&transfer);
    if (transfer.cancelled) {
      return Cancelled(request);
    }
    if (transfer.write_failed) {
      if (request.bytes > 0 && SizeOf(fd) + CURL_MAX_WRITE_SIZE > request.bytes) {
        Truncate(fd, 0);
        return DataLoss("{} is longer than the {} bytes expected", request.url, request.bytes);
      }
      return Unavailable("cannot write {}.part: {}", request.path, std::strerror(errno));
    }
    const bool ended = outcome.code == CURLE_OK;
    if (ended && (request.bytes <= 0 || SizeOf(fd) == request.bytes)) {
      return {};
    }
    // The server does not resume, or what is here is not a beginning of its file: from the start.
    if (have > 0 && (outcome.code == CURLE_RANGE_ERROR || outcome.status == 416)) {
      Truncate(fd, 0);
      continue;
    }
    if (ended) {
      Truncate(fd, 0);
      return DataLoss("{} has {} bytes, but {} are expected",
                      request.url,
                      have + transfer.received,
                      request.bytes);
    }
    fruitless = transfer.received > 0 ? 0 : fruitless + 1;
    if (!MayPass(outcome) || fruitless >= request.max_attempts) {
      return ToError(request, outcome);
    }
    log::Warning("store", "{}: {}; resuming at byte {}", request.url, outcome.message, SizeOf(fd));
    INFERD_TRY(WaitBeforeRetry(request, fruitless, outcome.retry_after_ms, SizeOf(fd)));
  }
}

}  // namespace

Result<> Download(const DownloadRequest& request) {
  const std::string part = request.path + ".part";
  INFERD_ASSIGN(const base::UniqueFd fd, OpenPart(part));
  INFERD_TRY(CheckSpace(request, SizeOf(fd.get())));
  constexpr int kRounds = 2;
  for (int round = 1; round <= kRounds; ++round) {
    INFERD_TRY(FillPart(request, fd.get()));
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
  for (int attempt = 1;; ++attempt) {
    std::string text;
    Transfer transfer{.request = request, .write = {}};
    transfer.write = [&](const char* data, std::size_t size) {
      if (text.size() + size > static_cast<std::size_t>(max_bytes)) {
        return false;
      }
      text.append(data, size);
      return true;
    };
    const Outcome outcome = Perform(&transfer);
    if (transfer.cancelled) {
      return Cancelled(request);
    }
    if (transfer.write_failed) {
      return ResourceExhausted("{}: the answer has more than {} bytes", request.url, max_bytes);
    }
    if (outcome.code == CURLE_OK) {
      return text;
    }
    if (!MayPass(outcome) || attempt >= request.max_attempts) {
      return ToError(request, outcome);
    }
    INFERD_TRY(WaitBeforeRetry(request, attempt, outcome.retry_after_ms, 0));
  }
}

}  // namespace inferd::store
