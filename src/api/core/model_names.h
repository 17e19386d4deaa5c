// SPDX-License-Identifier: Apache-2.0
// The names that clients may call the model by. They can change while it serves: whoever asked
// under a name that is gone since is answered all the same.
#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inferd::api {

/// Any thread. Never empty.
class ModelNames {
 public:
  explicit ModelNames(std::vector<std::string> names)
      : primary_(names.front()), names_(std::move(names)) {}

  /// The first one at the start, which metrics and the ledger keep.
  const std::string& primary() const { return primary_; }
  /// What answers that begin now say.
  std::string First() const {
    const std::lock_guard lock(mutex_);
    return names_.front();
  }
  std::vector<std::string> All() const {
    const std::lock_guard lock(mutex_);
    return names_;
  }
  bool Has(std::string_view name) const {
    const std::lock_guard lock(mutex_);
    return std::find(names_.begin(), names_.end(), name) != names_.end();
  }
  /// `names` is not empty.
  void Set(std::vector<std::string> names) {
    const std::lock_guard lock(mutex_);
    names_ = std::move(names);
  }

 private:
  const std::string primary_;
  mutable std::mutex mutex_;
  std::vector<std::string> names_;  // guarded by mutex_
};

}  // namespace inferd::api
