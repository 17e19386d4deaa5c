// SPDX-License-Identifier: Apache-2.0
// Which generations of the gRPC port run under which ids, so that others can end them.
#pragma once

#include "api/core/generation_host.h"
#include "inferd/result.h"

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace inferd::api {

/// Any thread. Clients choose ids, so several calls may have the same one.
class RunningCalls {
 public:
  /// Submits with the table locked, so that whoever sees the generation run finds it here.
  Result<GenerationHost::Ticket> Submit(GenerationHost* host,
                                        std::unique_ptr<Generation> generation,
                                        GenerationListener* listener,
                                        const std::vector<std::string>& ids) {
    const std::lock_guard lock(mutex_);
    auto ticket = host->Submit(std::move(generation), listener);
    if (ticket.ok()) {
      for (const std::string& id : ids) {
        tickets_.emplace(id, *ticket);
      }
    }
    return ticket;
  }
  void Remove(const std::string& id, GenerationHost::Ticket ticket) {
    const std::lock_guard lock(mutex_);
    const auto [begin, end] = tickets_.equal_range(id);
    for (auto it = begin; it != end; ++it) {
      if (it->second == ticket) {
        tickets_.erase(it);
        return;
      }
    }
  }
  std::vector<GenerationHost::Ticket> Find(const std::string& id) const {
    const std::lock_guard lock(mutex_);
    std::vector<GenerationHost::Ticket> found;
    const auto [begin, end] = tickets_.equal_range(id);
    for (auto it = begin; it != end; ++it) {
      found.push_back(it->second);
    }
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_multimap<std::string, GenerationHost::Ticket> tickets_;
};

}  // namespace inferd::api
