// SPDX-License-Identifier: Apache-2.0
#include "api/batch/batch_store.h"

#include "api/core/generate_params.h"
#include "api/files/disk.h"
#include "api/files/multipart.h"
#include "base/check.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

#include <algorithm>

namespace inferd::api {
namespace {

constexpr std::string_view kPrefix = "batch_";
constexpr std::string_view kEnd = ".json";
constexpr std::uint64_t kMaxRecordBytes = 4 << 20;

bool InOrder(const BatchRecord& a, const BatchRecord& b) { return a.order < b.order; }

}  // namespace

Result<std::unique_ptr<BatchStore>> BatchStore::Open(const std::string& folder,
                                                     Metrics* metrics,
                                                     const BatchStoreLimits& limits) {
  INFERD_TRY(MakeFolder(folder));
  std::unique_ptr<BatchStore> store(new BatchStore(folder, metrics, limits));
  INFERD_TRY(store->Load());
  return store;
}

Result<> BatchStore::Load() {
  INFERD_ASSIGN(const std::vector<std::string> names, NamesIn(folder_));
  for (const std::string& name : names) {
    if (!name.starts_with(kPrefix) || !name.ends_with(kEnd)) {
      continue;
    }
    INFERD_ASSIGN(const std::string text, base::ReadFile(folder_ + "/" + name, kMaxRecordBytes));
    auto record = BatchFromText(text);
    if (!record.ok() || record->id + std::string(kEnd) != name) {
      log::Warning("api", "{}/{} is damaged and left alone", folder_, name);
      continue;
    }
    last_order_ = std::max(last_order_, record->order);
    SetLocked(*std::move(record));
  }
  for (const std::string& name : names) {
    if (!name.starts_with(kPrefix) || (!name.ends_with(".output") && !name.ends_with(".errors"))) {
      continue;
    }
    const auto it = batches_.find(name.substr(0, name.find('.')));
    if (it != batches_.end() && IsOver(it->second.state)) {  // a server was killed at its very end
      RemoveFile(folder_ + "/" + name);
    }
  }
  return {};
}

void BatchStore::SetLocked(BatchRecord record) {
  EraseLocked(record.id);
  metrics_->batches[static_cast<std::size_t>(record.state)].fetch_add(1);
  std::string id = record.id;
  batches_.emplace(std::move(id), std::move(record));
}

void BatchStore::EraseLocked(const std::string& id) {
  if (const auto it = batches_.find(id); it != batches_.end()) {
    metrics_->batches[static_cast<std::size_t>(it->second.state)].fetch_sub(1);
    batches_.erase(it);
  }
}

Result<BatchRecord> BatchStore::Add(BatchRecord record) {
  const std::lock_guard change_lock(change_mutex_);
  {
    const std::lock_guard lock(mutex_);
    std::size_t open = 0;
    std::size_t of_owner = 0;
    for (const auto& [id, other] : batches_) {
      if (!IsOver(other.state)) {
        ++open;
        of_owner += other.owner == record.owner ? 1 : 0;
      }
    }
    if (open >= limits_.max_open || of_owner >= limits_.max_open_of_owner) {
      return ResourceExhausted(
          "{} batches are waiting or running, as many as may; wait for one to end",
          open >= limits_.max_open ? open : of_owner);
    }
    record.order = ++last_order_;
  }
  // Nobody sees a batch that is not yet on disk.
  if (auto written = Write(record); !written.ok()) {
    RemoveFile(folder_ + "/" + record.id + std::string(kEnd));
    return written.error();
  }
  {
    const std::lock_guard lock(mutex_);
    SetLocked(record);
  }
  ForgetOldest();
  return record;
}

void BatchStore::ForgetOldest() {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::int64_t, std::string>> over;
  for (const auto& [id, batch] : batches_) {
    if (IsOver(batch.state)) {
      over.emplace_back(batch.order, id);
    }
  }
  if (over.size() <= limits_.max_over) {
    return;
  }
  std::sort(over.begin(), over.end());
  over.resize(over.size() - limits_.max_over);
  for (const auto& [order, id] : over) {
    EraseLocked(id);
    RemoveFile(folder_ + "/" + id + std::string(kEnd));
  }
}

Result<> BatchStore::Write(const BatchRecord& record) const {
  return WriteDurably(folder_, record.id + std::string(kEnd), BatchToText(record));
}

Result<BatchRecord> BatchStore::Change(const std::string& id,
                                       const std::function<Result<>(BatchRecord*)>& change) {
  const std::lock_guard change_lock(change_mutex_);
  BatchRecord record;
  {
    const std::lock_guard lock(mutex_);
    const auto it = batches_.find(id);
    if (it == batches_.end()) {  // ended long ago, and forgotten meanwhile
      return NotFound("No batch found with id '{}'", Printable(id));
    }
    record = it->second;
  }
  INFERD_TRY(change(&record));
  INFERD_TRY(Write(record));
  const std::lock_guard lock(mutex_);
  SetLocked(record);
  return record;
}

void BatchStore::Count(const std::string& id, std::int64_t completed, std::int64_t failed) {
  const std::lock_guard lock(mutex_);
  if (const auto it = batches_.find(id); it != batches_.end()) {
    it->second.completed = completed;
    it->second.failed = failed;
  }
}

Result<BatchRecord> BatchStore::Find(std::string_view owner, std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const auto it = batches_.find(id);
  if (it == batches_.end() || it->second.owner != owner) {
    return NotFound("No batch found with id '{}'", Printable(id));
  }
  return it->second;
}

BatchRecord BatchStore::Get(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto it = batches_.find(id);
  INFERD_CHECK(it != batches_.end());
  return it->second;
}

std::optional<RecordPage<BatchRecord>> BatchStore::List(std::string_view owner,
                                                        const ListPage& page) const {
  const std::lock_guard lock(mutex_);
  std::vector<const BatchRecord*> found;
  for (const auto& [id, batch] : batches_) {
    if (batch.owner == owner) {
      found.push_back(&batch);
    }
  }
  return PageOf(std::move(found), page);
}

std::vector<BatchRecord> BatchStore::Unfinished() const {
  std::vector<BatchRecord> found;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, batch] : batches_) {
      if (!IsOver(batch.state)) {
        found.push_back(batch);
      }
    }
  }
  std::sort(found.begin(), found.end(), InOrder);
  return found;
}

}  // namespace inferd::api
