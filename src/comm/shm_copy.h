// SPDX-License-Identifier: Apache-2.0
// Copying into memory that another rank reads next.
#pragma once

#include <cstddef>

namespace inferd::comm {

/// memcpy; from 2 KiB on past this core's caches where the CPU has such stores: the reader would
/// take every line from there, which costs 30 ns a line between cores that are far apart (other
/// dies, other sockets), and the next write takes it back. Done before a release store that follows
/// it. Nothing may overlap.
void CopyForOthers(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace inferd::comm
