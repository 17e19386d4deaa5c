// SPDX-License-Identifier: Apache-2.0
#include "api/responses/response_store.h"

#include <utility>

namespace inferd::api {

void ResponseStore::EraseLocked(Order::iterator entry) {
  bytes_ -= entry->response->bytes();
  by_id_.erase(entry->id);
  order_.erase(entry);
}

void ResponseStore::PutLocked(const std::string& id, StoredResponse response) {
  if (const auto found = by_id_.find(id); found != by_id_.end()) {
    EraseLocked(found->second);
  }
  const std::size_t bytes = response.bytes();
  if (bytes > max_bytes_ || max_count_ == 0) {
    return;
  }
  while (order_.size() >= max_count_ || bytes_ + bytes > max_bytes_) {
    EraseLocked(std::prev(order_.end()));
  }
  order_.push_front({id, std::make_shared<const StoredResponse>(std::move(response))});
  by_id_.emplace(id, order_.begin());
  bytes_ += bytes;
}

void ResponseStore::Put(const std::string& id, StoredResponse response) {
  const std::lock_guard lock(mutex_);
  PutLocked(id, std::move(response));
}

void ResponseStore::Update(const std::string& id, std::string body, bool running) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) {
    return;
  }
  StoredResponse updated = *found->second->response;
  updated.body = std::move(body);
  updated.running = running;
  PutLocked(id, std::move(updated));
}

std::shared_ptr<const StoredResponse> ResponseStore::Get(std::string_view id,
                                                         std::string_view owner) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(std::string(id));
  if (found == by_id_.end() || found->second->response->owner != owner) {
    return nullptr;
  }
  order_.splice(order_.begin(), order_, found->second);
  return found->second->response;
}

bool ResponseStore::Erase(std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(std::string(id));
  if (found == by_id_.end()) {
    return false;
  }
  EraseLocked(found->second);
  return true;
}

std::size_t ResponseStore::count() const {
  const std::lock_guard lock(mutex_);
  return order_.size();
}

std::size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace inferd::api
