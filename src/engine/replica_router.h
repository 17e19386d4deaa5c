// SPDX-License-Identifier: Apache-2.0
// Which replica serves a request (--dp N): longest prefix believed cached there, then least
// outstanding tokens.
#pragma once

#include "engine/hash_index.h"
#include "engine/prefix_hasher.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace inferd::engine {

struct RouterOptions {
  std::int32_t num_replicas = 1;  // <= 64
  std::int32_t page_size = 32;
  std::size_t max_blocks = 1 << 16;  // remembered block keys, all replicas together
  /// A replica with a longer prefix is passed over when it is busier than the least busy one by
  /// more than this many outstanding tokens plus what the prefix saves.
  std::int64_t max_imbalance_tokens = 4096;
  std::uint64_t seed = 1;  // of the two random choices
};

/// What tells one client's session from all others; 0 for no session.
std::uint64_t SessionKey(std::string_view tenant, std::string_view session);

/// Owned by one thread (the leader's submit path). The map from block to replicas is approximate:
/// it learns from its own decisions and forgets the blocks not used for longest, so a wrong guess
/// costs a recomputed prefix, never a wrong token.
class ReplicaRouter {
 public:
  explicit ReplicaRouter(const RouterOptions& options);

  struct Choice {
    std::int32_t replica = -1;  // -1: none is available
    std::int64_t expected_cached_tokens = 0;
  };

  /// Chooses, remembers the keys there and adds `cost_tokens` (prompt and expected output) to the
  /// replica's load. `session` is of SessionKey(): its replica, which is the same one for as long
  /// as it is available, goes before a prefix, but for a replica that is too busy; 0: none.
  Choice Route(std::span<const Hash128> keys, std::int64_t cost_tokens, std::uint64_t session = 0);

  /// The request that Route() sent to `replica` has ended.
  void Finished(std::int32_t replica, std::int64_t cost_tokens);

  /// An unavailable replica gets nothing; what was believed cached there is forgotten (its workers
  /// were restarted).
  void SetAvailable(std::int32_t replica, bool available);

  std::int64_t outstanding_tokens(std::int32_t replica) const;
  std::size_t num_blocks() const { return index_.size(); }

 private:
  struct Block {
    std::uint64_t replicas = 0;          // bit per replica
    std::uint32_t older = 0, newer = 0;  // recency list, indices into nodes_
    Hash128 key;
  };

  std::int32_t LeastBusy();
  std::int32_t ReplicaOfSession(std::uint64_t session) const;
  void Remember(const Hash128& key, std::int32_t replica);
  void Unlink(std::uint32_t node);
  void LinkNewest(std::uint32_t node);
  std::uint64_t NextRandom();

  RouterOptions options_;
  std::vector<std::int64_t> outstanding_;
  std::uint64_t available_ = 0;
  HashIndex index_;           // into nodes_
  std::vector<Block> nodes_;  // nodes_[0] is the list's head
  std::uint64_t random_ = 0;
};

}  // namespace inferd::engine
