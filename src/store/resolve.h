// SPDX-License-Identifier: Apache-2.0
// From what the user calls a model to a path that OpenModel takes. Never downloads: that is Fetch.
#pragma once

#include "inferd/result.h"
#include "store/catalog.h"

#include <optional>
#include <string>
#include <string_view>

namespace inferd::store {

/// "org/repo", "org/repo:Q4_K_M" or "org/repo:file.gguf", with "hf://" before it and "@revision"
/// behind the repo as one likes.
struct HubName {
  std::string repo;
  std::string selector;  // empty: none
  std::string revision = "main";
};
std::optional<HubName> ParseHubName(std::string_view name);

/// hf:// and what follows is no hub name: says what one looks like.
Result<> CheckHubScheme(std::string_view name);

/// A local file or folder; a catalog name; a hub name; an s3:// name, as it was loaded last.
/// NotFound says how to fetch it, or which name is near. The path is absolute.
Result<std::string> ResolveModel(const std::string& name_or_path);

/// s3://bucket/prefix: a model that Fetch compares with its store at each start.
bool IsStoreName(std::string_view name);

/// This process uses the model at `path` until it ends: the cache does not remove it. Nothing for
/// paths outside the cache. Unavailable when it is being removed at this moment; a lease that
/// cannot be made is a warning.
Result<> HoldModel(const std::string& path);

/// Where Fetch puts things: CacheDir()/models.
std::string ModelCacheDir();
/// Where a source's model is in the cache, whether or not it is there: its file, or its folder.
std::string CachedPath(const CatalogEntry& entry, const CatalogSource& source);
std::string CachedPath(const HubName& hub);

}  // namespace inferd::store
