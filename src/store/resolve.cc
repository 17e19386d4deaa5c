// SPDX-License-Identifier: Apache-2.0
#include "store/resolve.h"

#include "base/error.h"
#include "base/file.h"
#include "store/hub.h"
#include "store/s3_fetch.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

namespace inferd::store {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHubScheme = "hf://";

// The hub names repositories with these characters only.
bool IsHubWord(std::string_view word) {
  return !word.empty() && word.size() <= 96 && word.front() != '.' && word.front() != '-' &&
         std::ranges::all_of(word, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

// A branch, a tag, a commit, or refs/pr/1.
bool IsRevision(std::string_view text) {
  while (text.size() <= 200) {
    const auto slash = text.find('/');
    if (!IsHubWord(text.substr(0, slash))) {
      return false;
    }
    if (slash == std::string_view::npos) {
      return true;
    }
    text.remove_prefix(slash + 1);
  }
  return false;
}

std::string FolderName(std::string_view repo) {
  std::string name(repo);
  name.replace(name.find('/'), 1, "--");
  return name;
}

// What other tools of the hub have downloaded already; empty if nothing.
std::string InHubCache(const HubName& hub) {
  const char* own = std::getenv("HF_HUB_CACHE");
  const char* root = std::getenv("HF_HOME");
  const char* user = std::getenv("HOME");
  fs::path cache = own != nullptr ? fs::path(own)
                   : root != nullptr
                       ? fs::path(root) / "hub"
                       : fs::path(user != nullptr ? user : ".") / ".cache/huggingface/hub";
  const fs::path folder = cache / ("models--" + FolderName(hub.repo));
  // A revision that is no reference may be a commit.
  const auto reference = base::ReadFile((folder / "refs" / hub.revision).string(), 256);
  std::string hash = reference.ok() ? *reference : hub.revision;
  while (!hash.empty() && std::isspace(static_cast<unsigned char>(hash.back())) != 0) {
    hash.pop_back();
  }
  const fs::path snapshot = folder / "snapshots" / hash;
  std::error_code ignored;
  if (!IsHubWord(hash) || !fs::exists(snapshot / "config.json", ignored)) {
    return {};
  }
  return snapshot.string();
}

std::string NamesOf(const Catalog& catalog) {
  std::string names;
  for (const CatalogEntry& entry : catalog.entries()) {
    names += (names.empty() ? "" : ", ") + entry.name;
  }
  return names;
}

Error NotFetched(std::string_view name, const std::string& path) {
  return NotFound("model {} is not in the cache (no {}); run `inferd fetch {}`", name, path, name);
}

}  // namespace

std::optional<HubName> ParseHubName(std::string_view name) {
  HubName hub;
  if (name.starts_with(kHubScheme)) {
    name.remove_prefix(kHubScheme.size());
  }
  const auto colon = name.find(':');
  if (colon != std::string_view::npos) {
    hub.selector = name.substr(colon + 1);
    if (!IsHubWord(hub.selector)) {
      return std::nullopt;
    }
  }
  std::string_view repo = name.substr(0, colon);
  if (const auto at = repo.find('@'); at != std::string_view::npos) {
    hub.revision = repo.substr(at + 1);
    repo = repo.substr(0, at);
    if (!IsRevision(hub.revision)) {
      return std::nullopt;
    }
  }
  const auto slash = repo.find('/');
  if (slash == std::string_view::npos || !IsHubWord(repo.substr(0, slash)) ||
      !IsHubWord(repo.substr(slash + 1))) {
    return std::nullopt;
  }
  hub.repo = repo;
  return hub;
}

Result<> CheckHubScheme(std::string_view name) {
  if (name.starts_with(kHubScheme) && !ParseHubName(name)) {
    return InvalidArgument("{} is not of the form hf://org/name[@revision][:file.gguf]", name);
  }
  return {};
}

bool IsStoreName(std::string_view name) { return IsS3Name(name); }

std::string ModelCacheDir() { return base::CacheDir() + "/models"; }

std::string CachedPath(const CatalogEntry& entry, const CatalogSource& source) {
  if (source.files.empty()) {
    return CachedPath(HubName{source.repo, "", source.revision});
  }
  // A file alone lies beside the others under its own name; several have a folder.
  if (source.files.size() == 1) {
    return ModelCacheDir() + "/" + source.files.front().name;
  }
  return ModelCacheDir() + "/" + entry.name;
}

std::string CachedPath(const HubName& hub) {
  std::string path = ModelCacheDir() + "/" + FolderName(hub.repo);
  if (hub.revision != "main") {
    std::string revision = hub.revision;
    std::ranges::replace(revision, '/', '@');  // which no revision holds
    path += "@" + revision;
  }
  return hub.selector.empty() ? path : path + "--" + hub.selector;
}

Result<std::string> ResolveModel(const std::string& name_or_path) {
  if (name_or_path.empty()) {
    return InvalidArgument("no model is named; use --model with a name, a file or a folder");
  }
  std::error_code error;
  if (fs::exists(name_or_path, error)) {
    return fs::absolute(name_or_path, error).lexically_normal().string();
  }
  if (IsS3Name(name_or_path)) {
    return ResolveS3(name_or_path);
  }
  INFERD_TRY(CheckHubScheme(name_or_path));
  INFERD_ASSIGN(const Catalog catalog, Catalog::Load());
  if (const CatalogEntry* entry = catalog.Find(name_or_path); entry != nullptr) {
    for (const CatalogSource& source : entry->sources) {
      const std::string path = CachedPath(*entry, source);
      if (IsComplete(path)) {
        return path;
      }
      if (source.kind == SourceKind::kHf && source.files.empty()) {
        if (std::string found = InHubCache({source.repo, "", source.revision}); !found.empty()) {
          return found;
        }
      }
    }
    return NotFetched(entry->name, CachedPath(*entry, entry->sources.front()));
  }
  if (const auto hub = ParseHubName(name_or_path)) {
    const std::string path = CachedPath(*hub);
    if (IsComplete(path)) {
      return path;
    }
    if (std::string found = InHubCache(*hub); !found.empty() && hub->selector.empty()) {
      return found;
    }
    return NotFetched(name_or_path, path);
  }
  const std::string nearest = catalog.Nearest(name_or_path);
  return NotFound(
      "{} is neither a file, nor a folder, nor a model of the catalog{}",
      name_or_path,
      nearest.empty() ? ", which has " + NamesOf(catalog) : "; did you mean " + nearest + "?");
}

}  // namespace inferd::store
