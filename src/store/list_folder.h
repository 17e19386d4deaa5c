// SPDX-License-Identifier: Apache-2.0
// What is in a folder, without exceptions: a range-for over a directory_iterator throws when a
// later entry cannot be read. Included by .cc files of this room.
#pragma once

#include <filesystem>
#include <vector>

namespace inferd::store {

/// In no order; what can be read of it, nothing when it is no folder.
std::vector<std::filesystem::path> ListFolder(const std::filesystem::path& folder);

}  // namespace inferd::store
