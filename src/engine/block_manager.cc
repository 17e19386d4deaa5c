// SPDX-License-Identifier: Apache-2.0
#include "engine/block_manager.h"

#include "base/check.h"
#include "base/error.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

namespace inferd::engine {
namespace {

constexpr int kMaxRunsTried = 8;
constexpr std::size_t kLookupBatch = 8;

}  // namespace

BlockManager::BlockManager(std::int64_t num_pages, std::int32_t page_size)
    : page_size_(page_size),
      blocks_(static_cast<std::size_t>(num_pages)),
      tokens_(static_cast<std::size_t>(num_pages) * static_cast<std::size_t>(page_size)),
      index_(static_cast<std::size_t>(num_pages)),
      free_(num_pages, true),
      num_free_(num_pages) {}

std::int32_t* BlockManager::TokensOf(std::int32_t page) {
  return tokens_.data() + static_cast<std::size_t>(page) * static_cast<std::size_t>(page_size_);
}

bool BlockManager::Matches(std::int32_t page,
                           std::span<const std::int32_t> tokens,
                           std::uint64_t parent) const {
  const std::int32_t* own =
      tokens_.data() + static_cast<std::size_t>(page) * static_cast<std::size_t>(page_size_);
  return At(page).parent == parent && std::memcmp(own, tokens.data(), tokens.size_bytes()) == 0;
}

void BlockManager::Lookup(std::span<const Hash128> keys,
                          std::span<const std::int32_t> tokens,
                          std::int64_t max_blocks,
                          Prefix* prefix) const {
  prefix->pages.clear();
  prefix->serial = kRoot;
  const std::size_t page_size = static_cast<std::size_t>(page_size_);
  const std::size_t limit =
      std::min({keys.size(),
                tokens.size() / page_size,
                static_cast<std::size_t>(std::max<std::int64_t>(max_blocks, 0))});
  // In batches, so that the cache misses of several blocks overlap.
  std::array<std::uint32_t, kLookupBatch> found{};
  for (std::size_t begin = 0; begin < limit; begin += kLookupBatch) {
    const std::size_t count = std::min(kLookupBatch, limit - begin);
    for (std::size_t i = 0; i < count; ++i) {
      index_.Prefetch(keys[begin + i]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      found[i] = index_.Find(keys[begin + i]);
      if (found[i] == HashIndex::kNone) {
        break;
      }
      __builtin_prefetch(&blocks_[found[i]]);
      __builtin_prefetch(&tokens_[found[i] * page_size]);
      __builtin_prefetch(&tokens_[found[i] * page_size + page_size - 1]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto page = static_cast<std::int32_t>(found[i]);
      if (found[i] == HashIndex::kNone ||
          !Matches(page, tokens.subspan((begin + i) * page_size, page_size), prefix->serial)) {
        return;
      }
      prefix->pages.push_back(page);
      prefix->serial = At(page).serial;
    }
  }
}

void BlockManager::Acquire(std::span<const std::int32_t> pages) {
  for (const std::int32_t page : pages) {
    Block& block = At(page);
    if (block.num_refs++ == 0) {
      INFERD_CHECK(block.serial != kBroken);
      Unlink(page);
      --num_cached_;
    }
  }
}

std::int32_t BlockManager::TakeFree(std::int32_t page) {
  free_.Erase(page);
  --num_free_;
  At(page).num_refs = 1;
  return page;
}

// Next fit: from the cursor on, the first run of free pages that is long enough, else the longest
// of a few.
std::int64_t BlockManager::FindRun(std::int64_t count, std::int64_t* length) const {
  std::int64_t best = -1;
  *length = 0;
  std::int64_t from = cursor_;
  bool wrapped = false;
  for (int tried = 0; tried < kMaxRunsTried; ++tried) {
    std::int64_t begin = free_.Next(from);
    if (begin < 0) {
      if (wrapped) {
        break;
      }
      wrapped = true;
      begin = free_.Next(0);
    }
    if (begin < 0) {
      break;
    }
    std::int64_t end = begin + 1;
    while (end - begin < count && free_.Contains(end)) {
      ++end;
    }
    if (end - begin > *length) {
      best = begin;
      *length = end - begin;
    }
    if (*length >= count) {
      break;
    }
    from = end;
  }
  return best;
}

bool BlockManager::Allocate(std::int64_t count,
                            std::int64_t spare,
                            std::vector<std::int32_t>* pages) {
  if (count > num_available()) {
    return false;
  }
  while (count > 0 && num_free_ > 0) {
    if (!pages->empty() && free_.Contains(pages->back() + 1)) {
      pages->push_back(TakeFree(pages->back() + 1));
      --count;
      continue;
    }
    std::int64_t length = 0;
    const std::int64_t begin = FindRun(count + spare, &length);
    INFERD_CHECK(begin >= 0);
    const std::int64_t taken = std::min(length, count);
    for (std::int64_t i = 0; i < taken; ++i) {
      pages->push_back(TakeFree(static_cast<std::int32_t>(begin + i)));
    }
    count -= taken;
    cursor_ = begin + length < num_total() ? begin + length : 0;
  }
  for (; count > 0; --count) {
    const std::int32_t page = oldest_;
    INFERD_CHECK(page >= 0);
    Uncache(page);
    pages->push_back(TakeFree(page));
  }
  return true;
}

std::uint64_t BlockManager::Commit(std::int32_t page,
                                   const Hash128& key,
                                   std::span<const std::int32_t> tokens,
                                   std::uint64_t parent,
                                   const BlockName& name,
                                   std::string_view salt) {
  Block& block = At(page);
  INFERD_CHECK(block.num_refs > 0 && block.serial == kBroken);
  INFERD_CHECK(tokens.size() == static_cast<std::size_t>(page_size_));
  if (parent == kBroken) {
    return kBroken;
  }
  const std::uint32_t other = index_.Find(key);
  if (other != HashIndex::kNone) {
    const auto other_page = static_cast<std::int32_t>(other);
    if (Matches(other_page, tokens, parent)) {
      return At(other_page).serial;
    }
    Uncache(other_page);  // its parent was evicted, or the hashes collide
  }
  block.key = key;
  block.parent = parent;
  block.serial = next_serial_++;
  std::memcpy(TokensOf(page), tokens.data(), tokens.size_bytes());
  index_.Insert(key, static_cast<std::uint32_t>(page));
  block.name = name.hash;
  if (observer_ != nullptr) {
    observer_->OnStored(name, tokens, salt);
  }
  return block.serial;
}

void BlockManager::Release(std::span<const std::int32_t> pages) {
  for (std::size_t i = pages.size(); i-- > 0;) {
    Block& block = At(pages[i]);
    INFERD_CHECK(block.num_refs > 0);
    if (--block.num_refs > 0) {
      continue;
    }
    if (block.serial != kBroken) {
      LinkNewest(pages[i]);
      ++num_cached_;
    } else {
      free_.Insert(pages[i]);
      ++num_free_;
    }
  }
}

// Takes a block out of the cache; an unreferenced page becomes free.
void BlockManager::Uncache(std::int32_t page) {
  Block& block = At(page);
  index_.Erase(block.key);
  if (observer_ != nullptr) {
    observer_->OnRemoved(block.name);
  }
  block.serial = kBroken;
  block.parent = kBroken;
  if (block.num_refs == 0) {
    Unlink(page);
    --num_cached_;
    free_.Insert(page);
    ++num_free_;
  }
}

void BlockManager::LinkNewest(std::int32_t page) {
  Block& block = At(page);
  block.older = newest_;
  block.newer = -1;
  (newest_ >= 0 ? At(newest_).newer : oldest_) = page;
  newest_ = page;
}

void BlockManager::Unlink(std::int32_t page) {
  Block& block = At(page);
  (block.older >= 0 ? At(block.older).newer : oldest_) = block.newer;
  (block.newer >= 0 ? At(block.newer).older : newest_) = block.older;
  block.older = block.newer = -1;
}

std::int64_t BlockManager::num_references() const {
  std::int64_t sum = 0;
  for (const Block& block : blocks_) {
    sum += block.num_refs;
  }
  return sum;
}

Result<> BlockManager::Audit() const {
  std::int64_t free = 0;
  std::int64_t cached = 0;
  std::int64_t findable = 0;
  for (std::int32_t page = 0; page < num_total(); ++page) {
    const Block& block = At(page);
    const bool in_cache = block.serial != kBroken;
    findable += in_cache ? 1 : 0;
    cached += in_cache && block.num_refs == 0 ? 1 : 0;
    free += free_.Contains(page) ? 1 : 0;
    if (free_.Contains(page) && (in_cache || block.num_refs != 0)) {
      return Internal("page {} is free but has {} references", page, block.num_refs);
    }
    if (!free_.Contains(page) && !in_cache && block.num_refs <= 0) {
      return Internal("page {} is lost: {} references", page, block.num_refs);
    }
    if (in_cache && index_.Find(block.key) != static_cast<std::uint32_t>(page)) {
      return Internal("page {} is cached but its key does not find it", page);
    }
  }
  std::int64_t listed = 0;
  for (std::int32_t page = oldest_; page >= 0 && listed <= num_total(); page = At(page).newer) {
    ++listed;
  }
  if (free != num_free_ || cached != num_cached_ || listed != cached ||
      findable != static_cast<std::int64_t>(index_.size())) {
    return Internal(
        "page counts disagree: free {} of {}, cached {} of {}, listed {}, findable {} of {}",
        free,
        num_free_,
        cached,
        num_cached_,
        listed,
        findable,
        index_.size());
  }
  return {};
}

}  // namespace inferd::engine
