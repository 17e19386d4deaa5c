// SPDX-License-Identifier: Apache-2.0
// What every backend checks before it touches a peer. A refused call leaves the group whole.
#pragma once

#include "comm/communicator.h"
#include "inferd/result.h"

#include <cstddef>
#include <span>
#include <string_view>

namespace inferd::comm {

inline constexpr int kMaxRanks = 32;

Result<> CheckGroup(const GroupOptions& options);
/// options.chunk_bytes, rounded up to whole cache lines.
std::size_t ChunkBytes(const GroupOptions& options);

Result<> CheckAllGather(std::span<const float> in,
                        std::span<float> out,
                        std::span<const std::size_t> counts,
                        int rank,
                        int size);
Result<> CheckAllToAllV(std::span<const std::byte> send,
                        std::span<const std::size_t> send_bytes,
                        std::span<std::byte> recv,
                        std::span<const std::size_t> recv_bytes,
                        int rank,
                        int size);
Result<> CheckRoot(int root, int size);
/// `what` is "send to" or "receive from".
Result<> CheckPeer(std::string_view what, int peer, int rank, int size);

/// memcpy that accepts empty spans with a null pointer.
void CopyBytes(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace inferd::comm
