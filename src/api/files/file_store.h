// SPDX-License-Identifier: Apache-2.0
// The files that clients upload and batches make: kept in one folder, found by id, owned by the
// key that made them.
//
// On disk a file is <id>.data and <id>.json; the second is written last, so what has none was never
// finished and is removed when the folder is opened. Ids are made here; no name of a client is ever
// part of a path.
#pragma once

#include "api/http/list_page.h"
#include "base/file.h"
#include "inferd/result.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace inferd::api {

struct FileRecord {
  std::string id;
  std::string owner;
  std::string filename;  // for people
  std::string purpose;
  std::int64_t bytes = 0;
  std::int64_t created_at = 0;  // unix seconds
  std::int64_t expires_at = 0;  // 0: never
  std::int64_t order = 0;       // of creation; finer than seconds
};

struct FileStoreOptions {
  std::string folder;
  std::int64_t max_file_bytes = 200 << 20;
  std::int64_t max_total_bytes = std::int64_t{10} << 30;
  std::int64_t max_files = 10'000;
};

/// Any thread.
class FileStore {
 public:
  /// Reads what is there. The folder is locked by the caller.
  static Result<std::unique_ptr<FileStore>> Open(const FileStoreOptions& options);

  const FileStoreOptions& options() const { return options_; }

  /// Keeps `content`; the record's owner, filename, purpose and times are given, the rest is filled
  /// in. kFailedPrecondition when there is no room.
  Result<FileRecord> Add(FileRecord record, std::string_view content);
  /// The same with the file at `path` as the content, under the id of the record; done once however
  /// often it is called, and in spite of a full store: the work is done already.
  Result<FileRecord> Adopt(FileRecord record, const std::string& path);
  /// kNotFound, also for files of others.
  Result<FileRecord> Find(std::string_view owner, std::string_view id) const;
  /// Those of one purpose, or (empty) all; nothing: the page begins after what is not there.
  std::optional<RecordPage<FileRecord>> List(std::string_view owner,
                                             std::string_view purpose,
                                             const ListPage& page) const;
  /// For reading; a file that is removed meanwhile can still be read to its end.
  Result<base::UniqueFd> OpenData(const FileRecord& record) const;
  std::string DataPath(const std::string& id) const;
  /// kAborted while something holds the file.
  Result<> Remove(std::string_view owner, std::string_view id);
  /// `holder` (a batch's id) needs the file: it can neither be removed nor expire.
  Result<FileRecord> Hold(std::string_view owner, std::string_view id, const std::string& holder);
  void Release(const std::string& id, const std::string& holder);
  /// Removes what has expired by then.
  void Expire(std::int64_t now_s);

  struct Use {
    std::int64_t files = 0;
    std::int64_t bytes = 0;
  };
  Use use() const;

 private:
  explicit FileStore(FileStoreOptions options) : options_(std::move(options)) {}
  Result<> Load();
  Result<> Reserve(std::int64_t bytes);
  void GiveBack(std::int64_t bytes);
  Result<FileRecord> Commit(FileRecord record);
  void Drop(const std::string& id);

  const FileStoreOptions options_;
  mutable std::mutex mutex_;
  std::map<std::string, FileRecord, std::less<>> files_;
  std::map<std::string, std::set<std::string>, std::less<>> holders_;  // by file id
  std::int64_t num_files_ = 0;                                         // with those being written
  std::int64_t bytes_ = 0;
  std::int64_t last_order_ = 0;
};

}  // namespace inferd::api
