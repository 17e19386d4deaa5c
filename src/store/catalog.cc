// SPDX-License-Identifier: Apache-2.0
#include "store/catalog.h"

#include "base/error.h"
#include "base/file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <optional>

namespace inferd::store {
namespace {

constexpr std::uint64_t kMaxCatalogBytes = 4U << 20U;

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(
      lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

// yaml-cpp throws; these run inside the one try block of Parse and answer its exceptions there.
std::string Text(const YAML::Node& node) {
  return node.IsDefined() ? node.as<std::string>() : std::string();
}

std::vector<std::string> Texts(const YAML::Node& node) {
  return node.IsDefined() ? node.as<std::vector<std::string>>() : std::vector<std::string>();
}

Result<> CheckKeys(const std::string& where,
                   const YAML::Node& map,
                   std::initializer_list<std::string_view> known) {
  if (!map.IsMap()) {
    return InvalidArgument("{} is not a map", where);
  }
  for (const auto& pair : map) {
    const auto key = pair.first.as<std::string>();
    if (std::ranges::find(known, key) == known.end()) {
      return InvalidArgument("{}: key {} is not known", where, key);
    }
  }
  return {};
}

// A name becomes a path in the cache.
bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string_view::npos;
}

Result<CatalogFile> ParseFile(const std::string& where, const YAML::Node& node) {
  CatalogFile file;
  if (node.IsScalar()) {
    file.name = node.as<std::string>();
  } else {
    INFERD_TRY(CheckKeys(where, node, {"name", "bytes", "sha256"}));
    file.name = Text(node["name"]);
    file.bytes = node["bytes"].IsDefined() ? node["bytes"].as<std::int64_t>() : 0;
    file.sha256 = Lower(Text(node["sha256"]));
  }
  if (!IsPlainFileName(file.name)) {
    return InvalidArgument("{}: \"{}\" is not a file name", where, file.name);
  }
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (!file.sha256.empty() &&
      (file.sha256.size() != 64 || !std::ranges::all_of(file.sha256, is_hex))) {
    return InvalidArgument("{}: sha256 \"{}\" is not 64 hexadecimal digits", where, file.sha256);
  }
  return file;
}

Result<CatalogSource> ParseSource(const std::string& where, const YAML::Node& node) {
  INFERD_TRY(CheckKeys(where, node, {"kind", "repo", "revision", "files", "packages", "version"}));
  CatalogSource source;
  const std::string kind = Text(node["kind"]);
  source.repo = Text(node["repo"]);
  source.packages = Texts(node["packages"]);
  source.version = Text(node["version"]);
  if (node["revision"].IsDefined()) {
    source.revision = Text(node["revision"]);
  }
  for (const auto& file : node["files"]) {
    INFERD_ASSIGN(CatalogFile parsed, ParseFile(where, file));
    source.files.push_back(std::move(parsed));
  }
  if (kind == "hf") {
    source.kind = SourceKind::kHf;
    if (std::ranges::count(source.repo, '/') != 1) {
      return InvalidArgument("{}: repo \"{}\" is not of the form org/name", where, source.repo);
    }
  } else if (kind == "pypi") {
    source.kind = SourceKind::kPypi;
    if (source.packages.empty() || source.files.size() != 1) {
      return InvalidArgument("{}: a pypi source needs packages and one file", where);
    }
  } else {
    return InvalidArgument("{}: kind \"{}\" is not known; hf and pypi are", where, kind);
  }
  return source;
}

Result<CatalogEntry> ParseEntry(std::string_view what,
                                const std::string& name,
                                const YAML::Node& node) {
  const std::string where = std::string(what) + ": " + name;
  INFERD_TRY(CheckKeys(where, node, {"aliases", "license", "about", "sources"}));
  CatalogEntry entry;
  entry.name = name;
  entry.aliases = Texts(node["aliases"]);
  entry.license = Text(node["license"]);
  entry.about = Text(node["about"]);
  for (const auto& source : node["sources"]) {
    INFERD_ASSIGN(CatalogSource parsed, ParseSource(where, source));
    entry.sources.push_back(std::move(parsed));
  }
  if (entry.sources.empty()) {
    return InvalidArgument("{}: no sources", where);
  }
  return entry;
}

std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

}  // namespace

Result<Catalog> Catalog::Parse(std::string_view what, const std::string& yaml) {
  try {
    const YAML::Node root = YAML::Load(yaml);
    INFERD_TRY(CheckKeys(std::string(what), root, {"models"}));
    if (!root["models"].IsMap()) {
      return InvalidArgument("{}: models is not a map", what);
    }
    Catalog catalog;
    for (const auto& pair : root["models"]) {
      INFERD_ASSIGN(CatalogEntry entry,
                    ParseEntry(what, pair.first.as<std::string>(), pair.second));
      std::vector<std::string> names = entry.aliases;
      names.push_back(entry.name);
      for (const std::string& name : names) {
        if (catalog.Find(name) != nullptr) {
          return InvalidArgument("{}: the name {} occurs twice", what, name);
        }
      }
      catalog.entries_.push_back(std::move(entry));
    }
    return catalog;
  } catch (const YAML::Exception& error) {
    return InvalidArgument("{}: {}", what, error.what());
  }
}

Result<Catalog> Catalog::Load() {
  Catalog catalog;
  if (const char* path = std::getenv("INFERD_CATALOG"); path != nullptr && *path != '\0') {
    INFERD_ASSIGN(const std::string text, base::ReadFile(path, kMaxCatalogBytes));
    INFERD_ASSIGN(catalog, Parse(path, text));
  }
  INFERD_ASSIGN(Catalog built_in, Parse("built-in model catalog", std::string(BuiltInCatalog())));
  std::ranges::move(built_in.entries_, std::back_inserter(catalog.entries_));
  return catalog;
}

const CatalogEntry* Catalog::Find(std::string_view name) const {
  const std::string wanted = Lower(name);
  for (const CatalogEntry& entry : entries_) {
    const auto is_wanted = [&wanted](const std::string& alias) { return Lower(alias) == wanted; };
    if (is_wanted(entry.name) || std::ranges::any_of(entry.aliases, is_wanted)) {
      return &entry;
    }
  }
  return nullptr;
}

std::string Catalog::Nearest(std::string_view name) const {
  const std::string wanted = Lower(name.substr(0, 100));
  std::string nearest;
  std::size_t best = wanted.size() / 3 + 1;
  for (const CatalogEntry& entry : entries_) {
    std::vector<std::string> names = entry.aliases;
    names.push_back(entry.name);
    for (const std::string& known : names) {
      const std::size_t distance = EditDistance(wanted, Lower(known));
      if (distance < best) {
        best = distance;
        nearest = known;
      }
    }
  }
  return nearest;
}

}  // namespace inferd::store
