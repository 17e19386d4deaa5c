// SPDX-License-Identifier: Apache-2.0
// The batches of a server: one JSON file each, written anew and synced when a state changes. The
// files that a running batch writes its answers to stand beside it.
#pragma once

#include "api/batch/batch_record.h"
#include "api/core/limits.h"
#include "api/core/metrics.h"
#include "api/http/list_page.h"
#include "inferd/result.h"

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inferd::api {

struct BatchStoreLimits {
  std::size_t max_open = limits::kOpenBatches;
  std::size_t max_open_of_owner = limits::kOpenBatchesOfOwner;
  std::size_t max_over = limits::kBatchesOver;
};

/// Any thread.
class BatchStore {
 public:
  /// `metrics` outlives the store.
  static Result<std::unique_ptr<BatchStore>> Open(const std::string& folder,
                                                  Metrics* metrics,
                                                  const BatchStoreLimits& limits = {});

  /// Keeps a new one; its order is filled in. kResourceExhausted when too many are open.
  Result<BatchRecord> Add(BatchRecord record);
  /// Changes one that exists, durably; changes come one after the other. An error of `change`
  /// leaves it as it was.
  Result<BatchRecord> Change(const std::string& id,
                             const std::function<Result<>(BatchRecord*)>& change);
  /// Numbers of lines, in memory only: the files of answers hold them too.
  void Count(const std::string& id, std::int64_t completed, std::int64_t failed);
  Result<BatchRecord> Find(std::string_view owner, std::string_view id) const;
  /// Of any owner; it exists.
  BatchRecord Get(const std::string& id) const;
  /// Nothing: the page begins after what is not there.
  std::optional<RecordPage<BatchRecord>> List(std::string_view owner, const ListPage& page) const;
  /// In order of creation.
  std::vector<BatchRecord> Unfinished() const;

  std::string OutputPath(const std::string& id) const { return folder_ + "/" + id + ".output"; }
  std::string ErrorsPath(const std::string& id) const { return folder_ + "/" + id + ".errors"; }

 private:
  BatchStore(std::string folder, Metrics* metrics, const BatchStoreLimits& limits)
      : folder_(std::move(folder)), metrics_(metrics), limits_(limits) {}
  Result<> Load();
  Result<> Write(const BatchRecord& record) const;
  void SetLocked(BatchRecord record);
  void EraseLocked(const std::string& id);
  void ForgetOldest();

  const std::string folder_;
  Metrics* const metrics_;
  const BatchStoreLimits limits_;
  std::mutex change_mutex_;  // held over the write of a change; taken before mutex_
  mutable std::mutex mutex_;
  std::map<std::string, BatchRecord, std::less<>> batches_;
  std::int64_t last_order_ = 0;
};

}  // namespace inferd::api
