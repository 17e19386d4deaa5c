// SPDX-License-Identifier: Apache-2.0
// The characters of a token (RFC 9110, 5.6.2): names of headers, of media types and their
// parameters.
#pragma once

#include <string_view>

namespace inferd::api {

inline bool IsTokenChar(char c) {
  const auto u = static_cast<unsigned char>(c);
  return u > 0x20 && u < 0x7f &&
         std::string_view("()<>@,;:\\\"/[]?={}").find(c) == std::string_view::npos;
}

}  // namespace inferd::api
