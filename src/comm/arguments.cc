// SPDX-License-Identifier: Apache-2.0
// Argument checks common to the backends.
#include "comm/arguments.h"

#include "base/checked_math.h"
#include "base/error.h"

#include <cstring>
#include <optional>

namespace inferd::comm {
namespace {

constexpr std::size_t kMinChunkBytes = 4096;
constexpr std::size_t kMaxChunkBytes = 64U << 20;
constexpr std::size_t kLine = 64;

/// The sum of `counts`, unless it wraps.
std::optional<std::size_t> Total(std::span<const std::size_t> counts) {
  std::size_t total = 0;
  for (const std::size_t count : counts) {
    const auto next = base::CheckedAdd(total, count);
    if (!next) {
      return std::nullopt;
    }
    total = *next;
  }
  return total;
}

Result<> CheckTable(std::string_view what,
                    std::span<const std::size_t> counts,
                    std::size_t expected_total,
                    int size) {
  if (counts.size() != static_cast<std::size_t>(size)) {
    return InvalidArgument("{}: {} counts for a group of {}", what, counts.size(), size);
  }
  const auto total = Total(counts);
  if (!total || *total != expected_total) {
    return InvalidArgument("{}: the counts add up to {}, the buffer holds {}",
                           what,
                           total.value_or(~std::size_t{0}),
                           expected_total);
  }
  return {};
}

}  // namespace

Result<> CheckGroup(const GroupOptions& options) {
  if (options.size < 1 || options.size > kMaxRanks) {
    return InvalidArgument("a group of {} ranks; 1 to {} are possible", options.size, kMaxRanks);
  }
  if (options.rank < 0 || options.rank >= options.size) {
    return InvalidArgument("rank {} in a group of {}", options.rank, options.size);
  }
  if (options.id.empty()) {
    return InvalidArgument("the group has no id");
  }
  if (options.chunk_bytes < kMinChunkBytes || options.chunk_bytes > kMaxChunkBytes) {
    return InvalidArgument(
        "chunk_bytes {} is outside {} to {}", options.chunk_bytes, kMinChunkBytes, kMaxChunkBytes);
  }
  if (options.join_deadline.count() <= 0 || options.call_deadline.count() <= 0) {
    return InvalidArgument("deadlines must be positive, got join {} ms and call {} ms",
                           options.join_deadline.count(),
                           options.call_deadline.count());
  }
  return {};
}

std::size_t ChunkBytes(const GroupOptions& options) {
  return (options.chunk_bytes + kLine - 1) / kLine * kLine;
}

Result<> CheckAllGather(std::span<const float> in,
                        std::span<float> out,
                        std::span<const std::size_t> counts,
                        int rank,
                        int size) {
  INFERD_TRY(CheckTable("all_gather", counts, out.size(), size));
  if (counts[static_cast<std::size_t>(rank)] != in.size()) {
    return InvalidArgument("all_gather: rank {} gives {} floats, its count says {}",
                           rank,
                           in.size(),
                           counts[static_cast<std::size_t>(rank)]);
  }
  return {};
}

Result<> CheckAllToAllV(std::span<const std::byte> send,
                        std::span<const std::size_t> send_bytes,
                        std::span<std::byte> recv,
                        std::span<const std::size_t> recv_bytes,
                        int rank,
                        int size) {
  INFERD_TRY(CheckTable("all_to_all_v send", send_bytes, send.size(), size));
  INFERD_TRY(CheckTable("all_to_all_v recv", recv_bytes, recv.size(), size));
  const auto self = static_cast<std::size_t>(rank);
  if (send_bytes[self] != recv_bytes[self]) {
    return InvalidArgument("all_to_all_v: rank {} sends itself {} bytes and expects {}",
                           rank,
                           send_bytes[self],
                           recv_bytes[self]);
  }
  return {};
}

Result<> CheckRoot(int root, int size) {
  if (root < 0 || root >= size) {
    return InvalidArgument("broadcast from rank {} in a group of {}", root, size);
  }
  return {};
}

Result<> CheckPeer(std::string_view what, int peer, int rank, int size) {
  if (peer < 0 || peer >= size || peer == rank) {
    return InvalidArgument("rank {} cannot {} rank {} in a group of {}", rank, what, peer, size);
  }
  return {};
}

void CopyBytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace inferd::comm
