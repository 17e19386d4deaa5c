// SPDX-License-Identifier: Apache-2.0
#include "store/list_folder.h"

#include <system_error>

namespace inferd::store {

namespace fs = std::filesystem;

std::vector<fs::path> ListFolder(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    paths.push_back(at->path());
  }
  return paths;
}

}  // namespace inferd::store
