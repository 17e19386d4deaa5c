// SPDX-License-Identifier: Apache-2.0
// What an object store says about an object's bytes, and the same computed from them. Included by
// .cc files of this room and its tests.
#pragma once

#include "base/digest.h"
#include "inferd/result.h"
#include "store/http.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace inferd::store {

struct ObjectChecksum {
  base::DigestKind kind = base::DigestKind::kMd5;
  std::string expected;         // as the header has it: base64, of an ETag hex; then "-parts"
  bool hex = false;             // it is an ETag
  int parts = 0;                // 0: of all bytes; else the digest of so many parts' digests
  std::int64_t part_bytes = 0;  // of all parts but the last
};

/// The strongest one in a HEAD's answer: x-amz-checksum-*, else the ETag when it can be an MD5 (not
/// of objects encrypted with keys that are not the store's). part_bytes is left 0.
std::optional<ObjectChecksum> ChecksumOf(const HttpAnswer& head);

/// Not thread-safe.
class ObjectHasher {
 public:
  /// Refuses kinds that this machine lacks.
  static Result<ObjectHasher> Make(const ObjectChecksum& checksum);
  /// In the object's order.
  void Update(std::span<const std::byte> data);
  /// In the form of `expected`.
  std::string Finish();

 private:
  ObjectHasher(const ObjectChecksum& checksum, base::Digest part, base::Digest whole)
      : checksum_(checksum), part_(std::move(part)), whole_(std::move(whole)) {}
  void EndPart();

  ObjectChecksum checksum_;
  base::Digest part_;      // of all bytes when there are no parts
  base::Digest whole_;     // of the parts' digests
  std::int64_t left_ = 0;  // of the part
  int parts_ = 0;
};

}  // namespace inferd::store
