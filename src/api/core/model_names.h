// SPDX-License-Identifier: Apache-2.0
// The names that clients may call the model by. They can change while it serves: whoever asked
// under a name that is gone since is answered all the same, and so is a batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
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
  /// Whether it is a name, or was one: of the names that are gone the last kRetired are kept.
  bool HasHad(std::string_view name) const {
    const std::lock_guard lock(mutex_);
    return std::find(names_.begin(), names_.end(), name) != names_.end() ||
           std::find(retired_.begin(), retired_.end(), name) != retired_.end();
  }
  /// `names` is not empty.
  void Set(std::vector<std::string> names) {
    const std::lock_guard lock(mutex_);
    for (std::string& old : names_) {
      std::erase(retired_, old);
      retired_.push_back(std::move(old));
    }
    if (std::ssize(retired_) > kRetired) {
      retired_.erase(retired_.begin(), retired_.end() - kRetired);
    }
    names_ = std::move(names);
  }

 private:
  static constexpr std::ptrdiff_t kRetired = 256;

  const std::string primary_;
  mutable std::mutex mutex_;  // guards all below
  std::vector<std::string> names_;
  std::vector<std::string> retired_;  // some may be names again
};

}  // namespace inferd::api
