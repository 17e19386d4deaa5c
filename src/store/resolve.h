// SPDX-License-Identifier: Apache-2.0
// From what the user calls a model to a path that OpenModel takes. Never downloads: that is Fetch.
#pragma once

#include "inferd/result.h"
#include "store/catalog.h"

#include <optional>
#include <string>
#include <string_view>

namespace inferd::store {

/// "org/repo", "org/repo:Q4_K_M" or "org/repo:file.gguf".
struct HubName {
  std::string repo;
  std::string selector;  // empty: none
};
std::optional<HubName> ParseHubName(std::string_view name);

/// A local file or folder; a catalog name; a hub name. NotFound says how to fetch it, or which name
/// is near. The path is absolute.
Result<std::string> ResolveModel(const std::string& name_or_path);

/// Where Fetch puts things: CacheDir()/models.
std::string ModelCacheDir();
/// Where a source's model is in the cache, whether or not it is there: its file, or its folder.
std::string CachedPath(const CatalogEntry& entry, const CatalogSource& source);
std::string CachedPath(const HubName& hub);

}  // namespace inferd::store
