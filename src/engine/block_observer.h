// SPDX-License-Identifier: Apache-2.0
// Who wants to know what the prefix cache holds, such as a router outside of this process.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace inferd::engine {

/// What a block is called outside of this process: a hash of its tokens, of all tokens before it
/// and of the salt, the same in every process (PrefixHasher::Stable).
struct BlockName {
  std::uint64_t hash = 0;
  std::optional<std::uint64_t> parent;  // of the block before it; none: it is the first
};

/// Told of every block that enters or leaves the prefix cache, in order. Expert groups each have a
/// cache and share the observer, so a hash may be stored once a group. Called on the engine thread:
/// must not block, and copies what it keeps.
class BlockObserver {
 public:
  virtual ~BlockObserver() = default;
  /// `tokens`: the whole block's. `salt`: of the sequence that computed it; empty: none.
  virtual void OnStored(const BlockName& name,
                        std::span<const std::int32_t> tokens,
                        std::string_view salt) = 0;
  /// Nobody can find the block any more.
  virtual void OnRemoved(std::uint64_t hash) = 0;
  /// All blocks of all groups are gone.
  virtual void OnCleared() = 0;
};

}  // namespace inferd::engine
