// SPDX-License-Identifier: Apache-2.0
#include "store/hub.h"

#include "base/error.h"
#include "base/file.h"
#include "store/json_util.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>

namespace inferd::store {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kManifest = "inferd-manifest.json";
constexpr std::uint64_t kMaxManifestBytes = 16U << 20U;
constexpr std::size_t kMaxFiles = 10'000;
constexpr std::array<std::string_view, 8> kWanted = {"config.json",
                                                     "generation_config.json",
                                                     "model.safetensors.index.json",
                                                     "tokenizer.json",
                                                     "tokenizer_config.json",
                                                     "special_tokens_map.json",
                                                     "chat_template.jinja",
                                                     "chat_template.json"};

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(
      lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

Result<std::vector<CatalogFile>> ParseSiblings(std::string_view repo, std::string_view answer) {
  const std::string what = fmt::format("the hub's answer about {}", repo);
  INFERD_ASSIGN(const Json object, ParseJsonObject(what, answer));
  const auto siblings = object.find("siblings");
  if (siblings == object.end() || !siblings->is_array() || siblings->size() > kMaxFiles) {
    return InvalidArgument("{} lists no files, or more than {}", what, kMaxFiles);
  }
  std::vector<CatalogFile> files;
  for (const Json& sibling : *siblings) {
    if (!sibling.is_object()) {
      continue;
    }
    const JsonFields fields(what, sibling);
    CatalogFile file;
    INFERD_ASSIGN(file.name, fields.StringOr("rfilename", ""));
    INFERD_ASSIGN(file.bytes, fields.IntOr("size", 0));
    if (const Json* lfs = fields.Get("lfs"); lfs != nullptr && lfs->is_object()) {
      INFERD_ASSIGN(file.sha256, JsonFields(what, *lfs).StringOr("sha256", ""));
    }
    if (IsSafeName(file.name)) {
      files.push_back(std::move(file));
    }
  }
  return files;
}

// Parts of one split model share what comes before "-00001-of-".
std::string ModelOf(const std::string& name) {
  const auto of = name.rfind("-of-");
  return of == std::string::npos || of < 6 ? name : name.substr(0, of - 6);
}

Result<std::vector<CatalogFile>> ChooseGguf(std::string_view repo,
                                            const std::vector<CatalogFile>& files,
                                            std::string_view selector) {
  std::vector<CatalogFile> chosen;
  std::vector<std::string> models;
  for (const CatalogFile& file : files) {
    const std::string lower = Lower(file.name);
    if (!lower.ends_with(".gguf") || lower.starts_with("mmproj") ||
        file.name.find('/') != std::string::npos ||
        lower.find(Lower(selector)) == std::string::npos) {
      continue;
    }
    chosen.push_back(file);
    if (std::ranges::find(models, ModelOf(file.name)) == models.end()) {
      models.push_back(ModelOf(file.name));
    }
  }
  if (chosen.empty()) {
    return NotFound(
        "{} has no {}{}",
        repo,
        selector.empty() ? "model in safetensors or GGUF form" : "GGUF file that is named like ",
        selector);
  }
  if (models.size() > 1) {
    const bool hub = repo.find("://") == std::string_view::npos;
    return InvalidArgument("{} has {} GGUF models; add the one you want, as in {}{}{}. They are {}",
                           repo,
                           models.size(),
                           repo,
                           hub ? ":" : "/",
                           hub ? models.front() : chosen.front().name,
                           fmt::join(models, ", "));
  }
  return chosen;
}

}  // namespace

bool IsSafeName(std::string_view name) {
  const auto slash = name.find('/');
  const std::string_view folder = slash == std::string_view::npos ? "" : name.substr(0, slash);
  const std::string_view file = slash == std::string_view::npos ? name : name.substr(slash + 1);
  return (slash == std::string_view::npos || folder == "additional_chat_templates") &&
         !file.empty() && file.front() != '.' && file.find('/') == std::string_view::npos &&
         file.find('\0') == std::string_view::npos;
}

Result<std::vector<CatalogFile>> ChooseHubFiles(std::string_view repo,
                                                std::string_view answer,
                                                std::string_view selector) {
  INFERD_ASSIGN(const std::vector<CatalogFile> files, ParseSiblings(repo, answer));
  return ChooseModelFiles(repo, files, selector);
}

Result<std::vector<CatalogFile>> ChooseModelFiles(std::string_view what,
                                                  const std::vector<CatalogFile>& files,
                                                  std::string_view selector) {
  const auto is_weights = [](const CatalogFile& file) {
    return file.name.ends_with(".safetensors") && !file.name.starts_with("consolidated") &&
           file.name.find('/') == std::string::npos;
  };
  const auto is_config = [](const CatalogFile& file) { return file.name == "config.json"; };
  if (!selector.empty() || std::ranges::none_of(files, is_weights) ||
      std::ranges::none_of(files, is_config)) {
    return ChooseGguf(what, files, selector);
  }
  std::vector<CatalogFile> chosen;
  for (const CatalogFile& file : files) {
    if (is_weights(file) || std::ranges::find(kWanted, file.name) != kWanted.end() ||
        file.name.starts_with("additional_chat_templates/")) {
      chosen.push_back(file);
    }
  }
  return chosen;
}

bool IsComplete(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    return fs::is_regular_file(path, ignored);
  }
  const std::string manifest = (fs::path(path) / kManifest).string();
  const auto text = base::ReadFile(manifest, kMaxManifestBytes);
  if (!text.ok()) {
    return false;
  }
  const auto object = ParseJsonObject(manifest, *text);
  if (!object.ok() || !object->contains("files") || !(*object)["files"].is_array()) {
    return false;
  }
  return std::ranges::all_of((*object)["files"], [&](const Json& name) {
    return name.is_string() &&
           fs::is_regular_file(fs::path(path) / name.get<std::string>(), ignored);
  });
}

Result<> WriteManifest(const std::string& folder, const std::vector<CatalogFile>& files) {
  Json names = Json::array();
  for (const CatalogFile& file : files) {
    names.push_back(file.name);
  }
  const Json manifest = {{"files", names}};
  return base::WriteFileAtomic((fs::path(folder) / kManifest).string(), manifest.dump(1) + "\n");
}

}  // namespace inferd::store
