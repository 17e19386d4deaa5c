// SPDX-License-Identifier: Apache-2.0
// Gathers what a replica's prefix cache does into batches, one about every step.
#pragma once

#include "engine/block_observer.h"
#include "leader/kv_events.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace inferd::leader {

/// Owner: the engine thread. Blocks that continue each other become one event. A hash that several
/// expert groups hold is stored with the first and removed with the last. After a batch that nobody
/// took, the next one begins with a clearing, and is tried even if nothing else has happened: who
/// follows the events does not go on believing in a block that is gone.
class KvEventRecorder : public engine::BlockObserver {
 public:
  /// Takes a batch, or returns false at once when there is no room for it.
  using Take = std::function<bool(KvEventBatch)>;

  explicit KvEventRecorder(Take take) : take_(std::move(take)) {}

  void OnStored(const engine::BlockName& name,
                std::span<const std::int32_t> tokens,
                std::string_view salt) override;
  void OnRemoved(std::uint64_t hash) override;
  void OnCleared() override;

  /// Hands on what has come together since the last call, if anything has, or a clearing that is
  /// still due. Once a step.
  void Flush();

  std::uint64_t num_batches() const { return num_batches_; }  // handed on
  std::uint64_t num_dropped() const { return num_dropped_; }

 private:
  Take take_;
  std::vector<KvEvent> events_;
  std::unordered_map<std::uint64_t, std::int32_t> held_;  // groups that hold a hash
  bool lost_ = false;                                     // the last batch was not taken
  std::uint64_t num_batches_ = 0, num_dropped_ = 0;
};

}  // namespace inferd::leader
