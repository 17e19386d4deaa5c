// SPDX-License-Identifier: Apache-2.0
#include "store/object_verifier.h"

#include "base/error.h"
#include "base/log.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <utility>

namespace inferd::store {
namespace {

constexpr std::size_t kMaxThreads = 4;
constexpr std::size_t kBufferBytes = 1U << 20U;
constexpr std::chrono::milliseconds kAlivePeriod{100};

std::int64_t Number(std::string_view text) {
  std::int64_t number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

ObjectVerifier::ObjectVerifier(const S3Client& client, const std::vector<RangedRead>& reads)
    : client_(client.settings(),
              client.location(),
              client.patience(),
              [this, &client] { return !stop_ && client.Alive(); }),
      reads_(reads),
      working_(std::min(kMaxThreads, reads.size())),
      wrong_(reads.size()),
      results_(reads.size()) {
  for (std::size_t i = 0, count = working_; i < count; ++i) {
    threads_.emplace_back([this] { Work(); });
  }
}

ObjectVerifier::~ObjectVerifier() {
  Stop();
  Join();
}

void ObjectVerifier::Stop() {
  stop_ = true;
  for (const RangedRead& read : reads_) {
    read.file->Stop();
  }
}

void ObjectVerifier::Join() {
  for (std::thread& thread : threads_) {
    thread.join();
  }
  threads_.clear();
}

Result<std::vector<std::string>> ObjectVerifier::Finish(const std::function<bool()>& alive) {
  std::unique_lock lock(mutex_);
  while (!done_.wait_for(lock, kAlivePeriod, [this] { return working_ == 0; })) {
    lock.unlock();
    if (!alive()) {
      Stop();
      Join();
      return Cancelled(
          "{}: cancelled while its checksums were computed; what was loaded is kept for "
          "the next time",
          client_.location().Url());
    }
    lock.lock();
  }
  lock.unlock();
  Join();
  for (const Result<>& result : results_) {
    INFERD_TRY(result);
  }
  return wrong_;
}

void ObjectVerifier::Work() {
  for (std::size_t index = next_++; index < reads_.size(); index = next_++) {
    results_[index] = Verify(index);
  }
  const std::lock_guard lock(mutex_);
  --working_;
  done_.notify_all();
}

// Of an object in parts the size of the first one must be asked for.
Result<std::optional<ObjectChecksum>> ObjectVerifier::Expected(HttpConnection* connection,
                                                               const S3Object& object) const {
  INFERD_ASSIGN(const HttpAnswer head, client_.Head(connection, object, ""));
  auto checksum = ChecksumOf(head);
  if (!checksum || checksum->parts == 0) {
    return checksum;
  }
  const auto part = client_.Head(connection, object, "partNumber=1");
  if (!part.ok() || Number(part->Header("x-amz-mp-parts-count")) != checksum->parts) {
    return std::optional<ObjectChecksum>();
  }
  checksum->part_bytes = Number(part->Header("content-length"));
  const bool plausible = checksum->part_bytes > 0 && checksum->part_bytes <= object.bytes;
  return plausible ? checksum : std::nullopt;
}

Error ObjectVerifier::Stopped(const S3Object& object) const {
  return Cancelled("{}: not verified to its end", client_.location().Url(object.key));
}

Result<> ObjectVerifier::Verify(std::size_t index) {
  const S3Object& object = reads_[index].object;
  PartFile* file = reads_[index].file;
  HttpConnection connection;
  INFERD_ASSIGN(auto checksum, Expected(&connection, object));
  std::optional<ObjectHasher> hasher;
  if (checksum) {
    if (auto made = ObjectHasher::Make(*checksum); made.ok()) {
      hasher = *std::move(made);
    }
  }
  std::vector<std::byte> buffer(kBufferBytes);
  std::int64_t at = 0;
  while (at < object.bytes) {
    const std::int64_t end = file->AwaitFrom(at);
    if (end == at) {
      return Stopped(object);
    }
    while (hasher && at < end) {
      if (stop_) {
        return Stopped(object);
      }
      const auto size = std::min<std::size_t>(buffer.size(), static_cast<std::size_t>(end - at));
      INFERD_TRY(file->Read(at, std::span(buffer).first(size)));
      hasher->Update(std::span(buffer).first(size));
      at += static_cast<std::int64_t>(size);
    }
    at = end;
  }
  if (!hasher) {
    log::Info(
        "store",
        "{}: the store gives no checksum that can be computed here; its length alone is checked",
        client_.location().Url(object.key));
  } else if (const std::string actual = hasher->Finish(); actual != checksum->expected) {
    wrong_[index] = fmt::format("its {}{} is {}, but the store says {}",
                                base::DigestName(checksum->kind),
                                checksum->parts > 0 ? " by parts" : "",
                                actual,
                                checksum->expected);
    return {};
  }
  return file->Finish();
}

}  // namespace inferd::store
