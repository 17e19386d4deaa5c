// SPDX-License-Identifier: Apache-2.0
// What lies where in a group's shared segment. Everything starts as zeros.
//
//   Header | RankLine[size] | Ring[size][size] (from, to) | buffers[size][2][chunk] | ring
//   data[size][size][ring]
//
// The part before the buffers is committed by rank 0 at creation; a rank commits its own buffers at
// its first collective and a ring at its first message over it, so an unused pair or an unused
// buffer costs address space only.
#pragma once

#include "comm/arguments.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace inferd::comm {

using SharedWord = std::atomic<std::uint32_t>;
static_assert(SharedWord::is_always_lock_free && sizeof(SharedWord) == sizeof(std::uint32_t));

/// Words that different processes write lie this far apart (the adjacent-line prefetcher pulls
/// pairs of lines).
inline constexpr std::size_t kFlagSpacing = 128;
inline constexpr std::size_t kPage = 4096;

/// A counter that one rank raises and others wait for: `value` is the futex, `parked` how many
/// sleep on it.
struct Signal {
  alignas(kFlagSpacing) SharedWord value;
  alignas(kFlagSpacing) SharedWord parked;
};

/// The collective a rank is in, so that ranks which have drifted apart find out instead of adding
/// up nonsense.
struct CallMark {
  std::uint16_t op;
  std::uint16_t root;
  std::uint32_t rounds;
  std::uint64_t bytes;
};

/// Written by its rank only. Marks and counts are doubled like the buffers: a rank is at most one
/// phase ahead.
struct RankLine {
  alignas(kFlagSpacing) SharedWord phase;  ///< the last phase this rank has published
  std::array<CallMark, 2> mark;            ///< in the line of `phase`: they are read together
  alignas(kFlagSpacing) SharedWord parked;
  alignas(kFlagSpacing) std::array<std::array<std::uint64_t, kMaxRanks>, 2> send_bytes;
};

/// Byte counters of one ordered pair, free running; head - tail bytes are in the ring.
struct Ring {
  Signal head;  ///< written by the sender
  Signal tail;  ///< written by the receiver
};

struct Header {
  static constexpr std::uint32_t kMagic = 0x49464431;  // "IFD1"

  alignas(kFlagSpacing) SharedWord magic;  ///< set last by rank 0
  std::uint64_t generation;
  std::uint64_t chunk_bytes;
  std::uint32_t size;
  alignas(kFlagSpacing) SharedWord fault;  ///< 0, or the packed Fault that broke the group
};

struct ShmLayout {
  ShmLayout(int group_size, std::size_t chunk)
      : size(static_cast<std::size_t>(group_size)),
        chunk_bytes(chunk),
        ring_bytes(size <= 8 ? 1U << 20 : 256U << 10) {
    lines = AlignUp(sizeof(Header), kFlagSpacing);
    rings = lines + size * sizeof(RankLine);
    buffers = AlignUp(rings + size * size * sizeof(Ring), kPage);
    buffer_stride = AlignUp(2 * chunk_bytes, kPage);
    ring_data = buffers + size * buffer_stride;
    total = ring_data + size * size * ring_bytes;
  }

  static std::size_t AlignUp(std::size_t value, std::size_t alignment) {
    return (value + alignment - 1) / alignment * alignment;
  }
  std::size_t BufferOffset(int rank, std::uint32_t phase) const {
    return buffers + static_cast<std::size_t>(rank) * buffer_stride + (phase & 1U) * chunk_bytes;
  }
  std::size_t PairIndex(int from, int to) const {
    return static_cast<std::size_t>(from) * size + static_cast<std::size_t>(to);
  }
  std::size_t RingDataOffset(int from, int to) const {
    return ring_data + PairIndex(from, to) * ring_bytes;
  }

  std::size_t size;
  std::size_t chunk_bytes;
  std::size_t ring_bytes;  ///< a power of two
  std::size_t lines = 0;
  std::size_t rings = 0;
  std::size_t buffers = 0;
  std::size_t buffer_stride = 0;
  std::size_t ring_data = 0;
  std::size_t total = 0;
};

}  // namespace inferd::comm
