// SPDX-License-Identifier: Apache-2.0
#include "api/files/file_store.h"

#include "api/core/generate_params.h"
#include "api/files/disk.h"
#include "api/files/multipart.h"
#include "base/error.h"
#include "base/log.h"

#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kPrefix = "file-";
constexpr std::string_view kRecordEnd = ".json";
constexpr std::string_view kDataEnd = ".data";
constexpr std::uint64_t kMaxRecordBytes = 64 << 10;

Json ToRecord(const FileRecord& file) {
  return {{"id", file.id},
          {"owner", file.owner},
          {"filename", file.filename},
          {"purpose", file.purpose},
          {"bytes", file.bytes},
          {"created_at", file.created_at},
          {"expires_at", file.expires_at},
          {"order", file.order}};
}

Result<FileRecord> FromRecord(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  FileRecord file;
  try {
    json.at("id").get_to(file.id);
    json.at("owner").get_to(file.owner);
    json.at("filename").get_to(file.filename);
    json.at("purpose").get_to(file.purpose);
    json.at("bytes").get_to(file.bytes);
    json.at("created_at").get_to(file.created_at);
    json.at("expires_at").get_to(file.expires_at);
    json.at("order").get_to(file.order);
  } catch (const Json::exception& error) {
    return DataLoss("{}", error.what());
  }
  return file;
}

Error Missing(std::string_view id) { return NotFound("No such file: {}", Printable(id)); }

}  // namespace

Result<std::unique_ptr<FileStore>> FileStore::Open(const FileStoreOptions& options) {
  INFERD_TRY(MakeFolder(options.folder));
  std::unique_ptr<FileStore> store(new FileStore(options));
  INFERD_TRY(store->Load());
  return store;
}

Result<> FileStore::Load() {
  INFERD_ASSIGN(const std::vector<std::string> names, NamesIn(options_.folder));
  for (const std::string& name : names) {
    if (!name.starts_with(kPrefix) || !name.ends_with(kRecordEnd)) {
      continue;
    }
    const std::string id = name.substr(0, name.size() - kRecordEnd.size());
    INFERD_ASSIGN(const std::string text,
                  base::ReadFile(options_.folder + "/" + name, kMaxRecordBytes));
    auto file = FromRecord(text);
    struct stat info {};
    if (!file.ok() || file->id != id || stat(DataPath(id).c_str(), &info) != 0 ||
        info.st_size != file->bytes) {
      log::Warning("api", "{}/{} is damaged and left alone", options_.folder, name);
      continue;
    }
    bytes_ += file->bytes;
    ++num_files_;
    last_order_ = std::max(last_order_, file->order);
    files_.emplace(id, *std::move(file));
  }
  const std::set<std::string> there(names.begin(), names.end());
  for (const std::string& name : names) {
    const std::size_t dot = name.find('.');
    const bool whole = there.contains(name.substr(0, dot) + std::string(kRecordEnd));
    if (name.starts_with(kPrefix) && !whole) {  // a write that never ended
      RemoveFile(options_.folder + "/" + name);
    }
  }
  return {};
}

std::string FileStore::DataPath(const std::string& id) const {
  return options_.folder + "/" + id + std::string(kDataEnd);
}

Result<> FileStore::Reserve(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (num_files_ >= options_.max_files) {
    return FailedPrecondition(
        "This server keeps at most {} files and has {}; delete some, or raise --max-files",
        options_.max_files,
        num_files_);
  }
  if (bytes > options_.max_total_bytes - bytes_) {
    return FailedPrecondition(
        "This server keeps at most {} bytes of files; {} are used and this file has {}; delete "
        "some, or raise --max-files-bytes",
        options_.max_total_bytes,
        bytes_,
        bytes);
  }
  ++num_files_;
  bytes_ += bytes;
  return {};
}

void FileStore::GiveBack(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  --num_files_;
  bytes_ -= bytes;
}

/// The data is in place: writes the record, which makes it a file.
Result<FileRecord> FileStore::Commit(FileRecord record) {
  {
    const std::lock_guard lock(mutex_);
    record.order = ++last_order_;
  }
  INFERD_TRY(
      WriteDurably(options_.folder, record.id + std::string(kRecordEnd), ToRecord(record).dump()));
  const std::lock_guard lock(mutex_);
  files_.insert_or_assign(record.id, record);
  return record;
}

Result<FileRecord> FileStore::Add(FileRecord record, std::string_view content) {
  record.id = NewId(kPrefix);
  record.bytes = static_cast<std::int64_t>(content.size());
  INFERD_TRY(Reserve(record.bytes));
  const std::int64_t bytes = record.bytes;
  const std::string id = record.id;
  const auto fail = [&](Error error) {
    Drop(id);
    GiveBack(bytes);
    return error;
  };
  if (auto written = WriteDurably(options_.folder, id + std::string(kDataEnd), content);
      !written.ok()) {
    return fail(written.error());
  }
  auto added = Commit(std::move(record));
  if (!added.ok()) {
    return fail(added.error());
  }
  return added;
}

Result<FileRecord> FileStore::Adopt(FileRecord record, const std::string& path) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = files_.find(record.id); it != files_.end()) {
      return it->second;
    }
  }
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return Internal("{} is gone", path);
  }
  INFERD_TRY(LinkFile(path, DataPath(record.id)));
  record.bytes = info.st_size;
  INFERD_ASSIGN(FileRecord adopted, Commit(std::move(record)));
  const std::lock_guard lock(mutex_);
  ++num_files_;
  bytes_ += adopted.bytes;
  return adopted;
}

Result<FileRecord> FileStore::Find(std::string_view owner, std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const auto it = files_.find(id);
  if (it == files_.end() || it->second.owner != owner) {
    return Missing(id);
  }
  return it->second;
}

std::optional<RecordPage<FileRecord>> FileStore::List(std::string_view owner,
                                                      std::string_view purpose,
                                                      const ListPage& page) const {
  const std::lock_guard lock(mutex_);
  std::vector<const FileRecord*> found;
  for (const auto& [id, file] : files_) {
    if (file.owner == owner && (purpose.empty() || file.purpose == purpose)) {
      found.push_back(&file);
    }
  }
  return PageOf(std::move(found), page);
}

Result<base::UniqueFd> FileStore::OpenData(const FileRecord& record) const {
  auto file = OpenToRead(DataPath(record.id));
  if (!file.ok() && file.error().code() == Code::kNotFound) {
    return Missing(record.id);  // removed meanwhile
  }
  return file;
}

void FileStore::Drop(const std::string& id) {
  // The record first: data without one is removed at the next start, a record without data is not.
  RemoveFile(options_.folder + "/" + id + std::string(kRecordEnd));
  RemoveFile(DataPath(id));
}

Result<> FileStore::Remove(std::string_view owner, std::string_view id) {
  std::string name;
  {
    const std::lock_guard lock(mutex_);
    const auto it = files_.find(id);
    if (it == files_.end() || it->second.owner != owner) {
      return Missing(id);
    }
    if (const auto held = holders_.find(id); held != holders_.end()) {
      return Aborted("The file {} is the input of {}, which is not over; cancel that batch first",
                     id,
                     *held->second.begin());
    }
    name = it->first;
    --num_files_;
    bytes_ -= it->second.bytes;
    files_.erase(it);
  }
  Drop(name);
  return {};
}

Result<FileRecord> FileStore::Hold(std::string_view owner,
                                   std::string_view id,
                                   const std::string& holder) {
  const std::lock_guard lock(mutex_);
  const auto it = files_.find(id);
  if (it == files_.end() || it->second.owner != owner) {
    return Missing(id);
  }
  holders_[it->first].insert(holder);
  return it->second;
}

void FileStore::Release(const std::string& id, const std::string& holder) {
  const std::lock_guard lock(mutex_);
  const auto it = holders_.find(id);
  if (it != holders_.end()) {
    it->second.erase(holder);
    if (it->second.empty()) {
      holders_.erase(it);
    }
  }
}

void FileStore::Expire(std::int64_t now_s) {
  std::vector<std::pair<std::string, std::string>> gone;  // owner and id
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, file] : files_) {
      if (file.expires_at != 0 && file.expires_at <= now_s && !holders_.contains(id)) {
        gone.emplace_back(file.owner, id);
      }
    }
  }
  for (const auto& [owner, id] : gone) {
    if (const auto removed = Remove(owner, id); removed.ok()) {
      log::Info("api", "{} has expired", id);
    }
  }
}

FileStore::Use FileStore::use() const {
  const std::lock_guard lock(mutex_);
  return {num_files_, bytes_};
}

}  // namespace inferd::api
