// SPDX-License-Identifier: Apache-2.0
// The KV pages of one expert group: who holds them, and which of them carry a prefix worth keeping.
// Deals in page numbers only; the bytes are the workers'.
#pragma once

#include "engine/block_observer.h"
#include "engine/hash_index.h"
#include "engine/page_bitmap.h"
#include "engine/prefix_hasher.h"
#include "inferd/result.h"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace inferd::engine {

/// Every page is in one of three states, and free + cached + used = total at all times:
///   used    referenced by one sequence or more; may also be in the prefix cache
///   cached  referenced by none, contents valid and findable by key; the least recently used is
///   evicted first free    referenced by none, contents worthless
///
/// A cached block has a serial number, new each time a block enters the cache, and the serial of
/// its parent block. A hit needs key, parent serial and all tokens to agree, so neither a hash
/// collision nor an evicted parent can lead to foreign contents. Owner: the scheduler of the group.
class BlockManager {
 public:
  /// Serial of "no block before this one".
  static constexpr std::uint64_t kRoot = 1;
  /// Serial of a chain that cannot be cached further.
  static constexpr std::uint64_t kBroken = 0;

  BlockManager(std::int64_t num_pages, std::int32_t page_size);

  /// From now on told of all that enters or leaves the cache. Outlives this; null: nobody.
  void Observe(BlockObserver* observer) { observer_ = observer; }

  struct Prefix {
    std::vector<std::int32_t> pages;  // of the leading full blocks found
    std::uint64_t serial = kRoot;     // of the last of them
  };

  /// The longest cached chain, at most `max_blocks`. Takes no references: follow with Acquire()
  /// before anything else.
  void Lookup(std::span<const Hash128> keys,
              std::span<const std::int32_t> tokens,
              std::int64_t max_blocks,
              Prefix* prefix) const;

  /// Adds a reference to each page.
  void Acquire(std::span<const std::int32_t> pages);

  /// Appends `count` pages with one reference each to `pages`, evicting cached ones if needed; all
  /// or nothing. Prefers pages adjacent to the last of `pages`; a new run leaves about `spare`
  /// pages of room behind it.
  bool Allocate(std::int64_t count, std::int64_t spare, std::vector<std::int32_t>* pages);

  /// The block in `page` is computed: makes it findable. Returns the serial to pass as `parent` for
  /// the next block. If an equal block is cached already, `page` stays uncached and the other's
  /// serial is returned. `name` and `salt` are for the observer.
  std::uint64_t Commit(std::int32_t page,
                       const Hash128& key,
                       std::span<const std::int32_t> tokens,
                       std::uint64_t parent,
                       const BlockName& name = {},
                       std::string_view salt = {});

  /// Drops one reference of each page, last first, so that the ends of chains are evicted before
  /// their beginnings.
  void Release(std::span<const std::int32_t> pages);

  std::int64_t num_total() const { return static_cast<std::int64_t>(blocks_.size()); }
  std::int64_t num_free() const { return num_free_; }
  std::int64_t num_cached() const { return num_cached_; }
  std::int64_t num_used() const { return num_total() - num_free_ - num_cached_; }
  std::int64_t num_available() const { return num_free_ + num_cached_; }

  /// Of all pages together; O(pages).
  std::int64_t num_references() const;
  /// Recounts everything, for tests and leak checks; O(pages).
  Result<> Audit() const;

 private:
  struct alignas(64) Block {
    Hash128 key;
    std::uint64_t serial = kBroken;  // kBroken: not in the cache
    std::uint64_t parent = kBroken;
    std::int32_t num_refs = 0;
    std::int32_t older = -1, newer = -1;  // recency list of cached pages
    std::uint64_t name = 0;               // BlockName::hash, of cached blocks
  };

  Block& At(std::int32_t page) { return blocks_[static_cast<std::size_t>(page)]; }
  const Block& At(std::int32_t page) const { return blocks_[static_cast<std::size_t>(page)]; }
  bool Matches(std::int32_t page, std::span<const std::int32_t> tokens, std::uint64_t parent) const;
  std::int32_t* TokensOf(std::int32_t page);
  void LinkNewest(std::int32_t page);
  void Unlink(std::int32_t page);
  void Uncache(std::int32_t page);
  std::int32_t TakeFree(std::int32_t page);
  std::int64_t FindRun(std::int64_t count, std::int64_t* length) const;

  std::int32_t page_size_;
  BlockObserver* observer_ = nullptr;
  std::vector<Block> blocks_;
  std::vector<std::int32_t> tokens_;  // [pages, page_size], of cached blocks
  HashIndex index_;
  PageBitmap free_;
  std::int64_t num_free_;
  std::int64_t num_cached_ = 0;
  std::int32_t oldest_ = -1, newest_ = -1;
  std::int64_t cursor_ = 0;  // where the next new run is looked for
  std::uint64_t next_serial_ = kRoot + 1;
};

}  // namespace inferd::engine
