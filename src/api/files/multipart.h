// SPDX-License-Identifier: Apache-2.0
// multipart/form-data (RFC 7578, RFC 2046) of a body that is there as a whole. Strict: what a
// sender may not write is refused by name instead of being guessed at.
#pragma once

#include "inferd/result.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

struct FormPart {
  std::string name;
  std::optional<std::string> filename;  // as the client wrote it: never part of a path
  std::string_view data;                // a view of the body
};

inline constexpr std::size_t kMultipartParts = 16;
inline constexpr std::size_t kMultipartHeadBytes = 4096;  // of one part
inline constexpr std::size_t kMultipartNameBytes = 512;   // of a name or file name

/// What a client has sent, for a message: short, and ASCII whatever it was.
std::string Printable(std::string_view text);

/// The boundary of a Content-Type; an error when it is no multipart/form-data with one.
Result<std::string> MultipartBoundary(std::string_view content_type);

/// The parts in their order; the views live as long as `body`.
Result<std::vector<FormPart>> ParseMultipart(std::string_view body, std::string_view boundary);

}  // namespace inferd::api
