// SPDX-License-Identifier: Apache-2.0
// Responses kept in memory, so that clients can read them again and go on from them. Bounded by
// count and bytes: the least recently used ones are forgotten first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace inferd::api {

/// Immutable once stored.
struct StoredResponse {
  std::string body;         // the response object, as JSON
  std::string input_items;  // a JSON array: the whole conversation that the response answers
  bool running = false;
  std::string owner = {};  // only who is that may see it

  std::size_t bytes() const {
    return body.size() + input_items.size() + owner.size() + sizeof *this;
  }
};

/// Any thread.
class ResponseStore {
 public:
  ResponseStore(std::size_t max_count, std::size_t max_bytes)
      : max_count_(max_count), max_bytes_(max_bytes) {}

  /// Adds a response, or replaces it. One that alone is over the limit is not kept.
  void Put(const std::string& id, StoredResponse response);
  /// The new state of a response that is still there; a deleted one stays deleted.
  void Update(const std::string& id, std::string body, bool running);
  /// Null: never stored, deleted, forgotten, or another owner's.
  std::shared_ptr<const StoredResponse> Get(std::string_view id, std::string_view owner = {});
  bool Erase(std::string_view id);

  std::size_t count() const;
  std::size_t bytes() const;

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> response;
  };
  using Order = std::list<Entry>;

  void PutLocked(const std::string& id, StoredResponse response);
  void EraseLocked(Order::iterator entry);

  const std::size_t max_count_;
  const std::size_t max_bytes_;
  mutable std::mutex mutex_;
  Order order_;  // most recently used first
  std::unordered_map<std::string, Order::iterator> by_id_;
  std::size_t bytes_ = 0;
};

}  // namespace inferd::api
