// SPDX-License-Identifier: Apache-2.0
#include "leader/kv_event_recorder.h"

#include <chrono>
#include <utility>
#include <variant>

namespace inferd::leader {

void KvEventRecorder::OnStored(const engine::BlockName& name,
                               std::span<const std::int32_t> tokens,
                               std::string_view salt) {
  if (++held_[name.hash] > 1) {
    return;
  }
  KvBlocksStored* last = events_.empty() ? nullptr : std::get_if<KvBlocksStored>(&events_.back());
  if (last == nullptr || !name.parent || last->hashes.back() != *name.parent) {
    last = &std::get<KvBlocksStored>(events_.emplace_back(KvBlocksStored{}));
    last->parent = name.parent;
    last->salt = salt;
  }
  last->hashes.push_back(name.hash);
  last->tokens.insert(last->tokens.end(), tokens.begin(), tokens.end());
}

void KvEventRecorder::OnRemoved(std::uint64_t hash) {
  const auto held = held_.find(hash);
  if (held == held_.end() || --held->second > 0) {
    return;
  }
  held_.erase(held);
  KvBlocksRemoved* last = events_.empty() ? nullptr : std::get_if<KvBlocksRemoved>(&events_.back());
  if (last == nullptr) {
    last = &std::get<KvBlocksRemoved>(events_.emplace_back(KvBlocksRemoved{}));
  }
  last->hashes.push_back(hash);
}

void KvEventRecorder::OnCleared() {
  held_.clear();
  events_.clear();  // what came before is undone by it
  events_.emplace_back(KvAllCleared{});
}

void KvEventRecorder::Flush() {
  if (events_.empty() && !lost_) {
    return;
  }
  const bool has_news = !events_.empty();
  KvEventBatch batch;
  batch.unix_seconds =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  if (lost_) {
    batch.events.emplace_back(KvAllCleared{});
  }
  batch.events.insert(batch.events.end(),
                      std::make_move_iterator(events_.begin()),
                      std::make_move_iterator(events_.end()));
  events_.clear();
  lost_ = !take_(std::move(batch));
  num_batches_ += lost_ ? 0 : 1;
  num_dropped_ += lost_ && has_news ? 1 : 0;
}

}  // namespace inferd::leader
