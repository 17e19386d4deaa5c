// SPDX-License-Identifier: Apache-2.0
// A file that arrives in ranges, in any order, from several threads: a file with holes, and
// beside it FILE.ranges, which says what is there, so that nothing is fetched again. Included
// by .cc files of this room and its tests.
#pragma once

#include "base/file.h"
#include "inferd/result.h"
#include "store/range_set.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::store {

/// Where the bytes are until all are there: in NAME.part, or under the name itself, for who reads
/// the parts that he asked for.
enum class PartPlace : std::uint8_t { kBeside, kInPlace };

/// Thread-safe. The caller keeps other processes away (store/model_cache.h).
class PartFile {
 public:
  /// Opens or makes the file. What an earlier run left is kept if it was of the same `size` and
  /// `tag` (the object's ETag).
  static Result<std::unique_ptr<PartFile>> Open(const std::string& path,
                                                std::int64_t size,
                                                std::string_view tag,
                                                PartPlace place = PartPlace::kBeside);

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }
  std::vector<ByteRange> Missing() const { return Missing({0, size_}); }
  std::vector<ByteRange> Missing(ByteRange within) const;
  std::int64_t have() const;

  /// Writes bytes at `offset`; they count only when they are recorded.
  Result<> Write(std::int64_t offset, std::string_view data);
  /// From now on these bytes are there, also for the next run; in place, where no checksum would
  /// find what a power cut has taken, for runs of the same boot of the machine only.
  Result<> Record(ByteRange range);
  Result<> Read(std::int64_t offset, std::span<std::byte> buffer) const;
  /// Waits until bytes from `begin` on are there without a gap, and returns their end; `begin`
  /// after Stop, or at the end of the file.
  std::int64_t AwaitFrom(std::int64_t begin) const;
  /// Nobody waits any more.
  void Stop();

  /// Gives a file that is beside its name this name, after its bytes are on the disk.
  Result<> Finish();
  /// Forgets every byte.
  Result<> Clear();

 private:
  PartFile(std::string path, std::int64_t size, std::string head, PartPlace place, std::string boot)
      : path_(std::move(path)),
        part_name_(path_ + (place == PartPlace::kBeside ? ".part" : "")),
        size_(size),
        head_(std::move(head)),
        place_(place),
        boot_(std::move(boot)) {}
  const std::string& PartName() const { return part_name_; }
  std::string RecordName() const { return part_name_ + ".ranges"; }
  /// False if there is no record of this size and tag.
  bool ReadRecord();
  Result<> BeginRecord();

  const std::string path_;
  const std::string part_name_;
  const std::int64_t size_;
  const std::string head_;  // the record's first line
  const PartPlace place_;
  const std::string boot_;  // at the end of the record's lines; empty: not known, or not needed
  base::UniqueFd file_;
  base::UniqueFd record_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable grown_;
  RangeSet there_;
  bool stopped_ = false;
};

}  // namespace inferd::store
