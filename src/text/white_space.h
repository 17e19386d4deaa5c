// SPDX-License-Identifier: Apache-2.0
// White space as JSON has it.
#pragma once

#include <string_view>

namespace inferd::text {

inline constexpr std::string_view kSpace = " \t\r\n";

constexpr bool IsSpace(char c) { return kSpace.find(c) != std::string_view::npos; }

/// `text` without white space at its ends.
constexpr std::string_view Trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos
             ? std::string_view{}
             : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace inferd::text
