// SPDX-License-Identifier: Apache-2.0
// Reads objects over a few connections at once, piece by piece, into part files. A connection that
// is cut goes on at the byte it had. Included by .cc files of this room and its tests.
#pragma once

#include "inferd/result.h"
#include "store/part_file.h"
#include "store/s3.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace inferd::store {

struct RangedRead {
  S3Object object;
  PartFile* file = nullptr;            // of the object's size; outlives the read
  std::vector<ByteRange> wanted = {};  // what is missing of it counts; empty: all
};

/// Until all wanted bytes of all files are there, in the order given. Blocks; starts up to
/// `connections` threads. `progress` is called from the calling thread every 100 ms with the bytes
/// received by this call; false cancels. What was received is recorded however it ends. Errors:
/// what the store refuses, by the object's name; Aborted for an object that was changed;
/// Unavailable when no byte has come on any connection for the client's give_up_ms.
Result<> ReadRanges(const S3Client& client,
                    const std::vector<RangedRead>& reads,
                    int connections,
                    const std::function<bool(std::int64_t)>& progress);

}  // namespace inferd::store
