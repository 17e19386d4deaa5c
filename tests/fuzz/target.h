// SPDX-License-Identifier: Apache-2.0
// What a fuzz target is: a function that takes any bytes and must neither crash, nor hang, nor
// break the promise it checks. Each target is one file and one program, with driver.cc around it.
#pragma once

#include <string>
#include <string_view>

namespace inferd::fuzz {

/// Of the target: looks at one input. Promises are checked with INFERD_CHECK.
void Look(std::string_view input);

/// A file in memory with these bytes, for readers that want a path; overwritten by the next call
/// for the same name.
std::string FileWith(const std::string& name, std::string_view bytes);

}  // namespace inferd::fuzz
