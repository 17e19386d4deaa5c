// SPDX-License-Identifier: Apache-2.0
#include "store/part_file.h"

#include "base/error.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace inferd::store {
namespace {

constexpr std::uint64_t kMaxRecordBytes = 256U << 20U;

Error FromErrno(std::string_view what, const std::string& path) {
  const std::string why = std::strerror(errno);
  return errno == ENOSPC || errno == EDQUOT ? ResourceExhausted("{} {}: {}", what, path, why)
                                            : Unavailable("{} {}: {}", what, path, why);
}

// Nobody checks what is in place, and a record may outlive a power cut that the bytes did not: each
// of its lines counts only in the boot that wrote it. Empty where the system does not tell.
std::string BootOf(PartPlace place) {
  if (place != PartPlace::kInPlace) {
    return "";
  }
  const base::UniqueFd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<char, 64> id{};  // a UUID and a newline; /proc tells no size
  const ssize_t got = file.valid() ? ::read(file.get(), id.data(), id.size()) : 0;
  const std::string_view text(id.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  return std::string(text.substr(0, text.find('\n')));
}

// "BEGIN END" or "BEGIN END BOOT", as Record writes them.
bool ParseRange(std::string_view line, ByteRange* range, std::string_view* boot) {
  const char* const end = line.data() + line.size();
  const auto begin = std::from_chars(line.data(), end, range->begin);
  if (begin.ec != std::errc() || begin.ptr == end || *begin.ptr != ' ') {
    return false;
  }
  const auto last = std::from_chars(begin.ptr + 1, end, range->end);
  if (last.ec != std::errc() || (last.ptr != end && *last.ptr != ' ')) {
    return false;
  }
  *boot = last.ptr == end ? std::string_view() : std::string_view(last.ptr + 1, end);
  return true;
}

}  // namespace

Result<std::unique_ptr<PartFile>> PartFile::Open(const std::string& path,
                                                 std::int64_t size,
                                                 std::string_view tag,
                                                 PartPlace place) {
  std::string header = fmt::format("{} {}\n", size, tag);
  std::unique_ptr<PartFile> part(new PartFile(path, size, std::move(header), place, BootOf(place)));
  part->file_.Reset(::open(part->PartName().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!part->file_.valid()) {
    return FromErrno("cannot open", part->PartName());
  }
  if (!part->ReadRecord()) {
    INFERD_TRY(part->Clear());
    return part;
  }
  part->record_.Reset(::open(part->RecordName().c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!part->record_.valid()) {
    return FromErrno("cannot open", part->RecordName());
  }
  return part;
}

bool PartFile::ReadRecord() {
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0 || info.st_size != size_) {
    return false;
  }
  const auto text = base::ReadFile(RecordName(), kMaxRecordBytes);
  if (!text.ok() || !text->starts_with(head_)) {
    return false;
  }
  std::string_view rest = std::string_view(*text).substr(head_.size());
  for (auto end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
    ByteRange range;
    std::string_view boot;
    if (!ParseRange(rest.substr(0, end), &range, &boot) || range.begin < 0 || range.end > size_) {
      return false;
    }
    if (place_ == PartPlace::kBeside ? boot.empty() : !boot.empty() && boot == boot_) {
      there_.Add(range);
    }
    rest.remove_prefix(end + 1);
  }
  // What is left is a line that was not written to its end.
  return rest.empty() ||
         ::truncate(RecordName().c_str(), static_cast<off_t>(text->size() - rest.size())) == 0;
}

Result<> PartFile::BeginRecord() {
  record_.Reset(
      ::open(RecordName().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  const auto length = static_cast<ssize_t>(head_.size());
  if (!record_.valid() || ::write(record_.get(), head_.data(), head_.size()) != length) {
    return FromErrno("cannot write", RecordName());
  }
  return {};
}

Result<> PartFile::Clear() {
  const std::lock_guard lock(mutex_);
  there_ = {};
  INFERD_TRY(BeginRecord());
  if (::ftruncate(file_.get(), 0) != 0 ||
      ::ftruncate(file_.get(), static_cast<off_t>(size_)) != 0) {
    return FromErrno("cannot write", PartName());
  }
  return {};
}

std::vector<ByteRange> PartFile::Missing(ByteRange within) const {
  const std::lock_guard lock(mutex_);
  return there_.Missing(within);
}

std::int64_t PartFile::have() const {
  const std::lock_guard lock(mutex_);
  return there_.Total();
}

Result<> PartFile::Write(std::int64_t offset, std::string_view data) {
  while (!data.empty()) {
    const ssize_t put = ::pwrite(file_.get(), data.data(), data.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      return FromErrno("cannot write", PartName());
    }
    offset += put;
    data.remove_prefix(static_cast<std::size_t>(put));
  }
  return {};
}

Result<> PartFile::Record(ByteRange range) {
  if (range.size() <= 0) {
    return {};
  }
  const std::string line =
      fmt::format("{} {}{}{}\n", range.begin, range.end, boot_.empty() ? "" : " ", boot_);
  {
    const std::lock_guard lock(mutex_);
    if (::write(record_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      return FromErrno("cannot write", RecordName());
    }
    there_.Add(range);
  }
  grown_.notify_all();
  return {};
}

Result<> PartFile::Read(std::int64_t offset, std::span<std::byte> buffer) const {
  while (!buffer.empty()) {
    const ssize_t got =
        ::pread(file_.get(), buffer.data(), buffer.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return FromErrno("cannot read", PartName());
    }
    offset += got;
    buffer = buffer.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

std::int64_t PartFile::AwaitFrom(std::int64_t begin) const {
  std::unique_lock lock(mutex_);
  grown_.wait(lock, [&] { return stopped_ || begin >= size_ || there_.EndFrom(begin) > begin; });
  return stopped_ ? begin : there_.EndFrom(begin);
}

void PartFile::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  grown_.notify_all();
}

Result<> PartFile::Finish() {
  if (::fsync(file_.get()) != 0 || ::rename(PartName().c_str(), path_.c_str()) != 0) {
    return FromErrno("cannot finish", path_);
  }
  ::unlink(RecordName().c_str());
  return {};
}

}  // namespace inferd::store
