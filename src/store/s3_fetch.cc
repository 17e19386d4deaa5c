// SPDX-License-Identifier: Apache-2.0
#include "store/s3_fetch.h"

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "store/hub.h"
#include "store/model_cache.h"
#include "store/object_verifier.h"
#include "store/ranged_read.h"
#include "store/resolve.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

namespace inferd::store {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHashChars = 16;
constexpr std::size_t kMaxReadableName = 80;
constexpr int kRounds = 2;

std::string Hash(const std::string& text) {
  auto digest = base::Digest::Make(base::DigestKind::kSha256);
  if (!digest.ok()) {
    return std::to_string(std::hash<std::string>()(text));
  }
  digest->Update(std::as_bytes(std::span(text)));
  return base::ToHex(digest->Finish()).substr(0, kHashChars);
}

/// Where the versions of a location are.
std::string FolderOf(const S3Location& location, const S3Settings& settings) {
  std::string readable = location.bucket + (location.key.empty() ? "" : "--") + location.key;
  for (char& c : readable) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_';
    c = plain ? c : '-';
  }
  return fmt::format("{}/s3/{}-{}",
                     ModelCacheDir(),
                     readable.substr(0, kMaxReadableName),
                     Hash(settings.endpoint + "\n" + location.Url()));
}

bool IsGgufKey(std::string_view key) { return key.ends_with(".gguf"); }

Result<std::string> LatestIn(const S3Location& location, const std::string& folder) {
  const auto version = base::ReadFile(folder + "/latest", kHashChars * 2);
  if (version.ok() && version->find('/') == std::string::npos &&
      IsComplete(folder + "/" + *version)) {
    return ModelIn(folder + "/" + *version, location);
  }
  return NotFound("model {} is not in the cache (nothing complete in {}); run `inferd fetch {}`",
                  location.Url(),
                  folder,
                  location.Url());
}

// "m-00001-of-00003.gguf" begins like its further parts: "m-".
std::string_view StemOf(std::string_view key) {
  const auto of = key.rfind("-of-");
  constexpr std::size_t kDigits = 6;  // "-00001"
  return of == std::string_view::npos || of < kDigits ? key : key.substr(0, of - kDigits + 1);
}

Result<> CheckSpace(const std::string& folder, std::int64_t bytes) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) {
    return {};
  }
  const auto free_bytes =
      static_cast<std::int64_t>(disk.f_bavail) * static_cast<std::int64_t>(disk.f_frsize);
  if (free_bytes < bytes) {
    return ResourceExhausted("{} needs {} more bytes, but has {} free", folder, bytes, free_bytes);
  }
  return {};
}

/// One version on its way into the cache.
class Loader {
 public:
  Loader(const S3Client& client, const FetchOptions& options, std::string folder)
      : client_(client), options_(options), folder_(std::move(folder)) {}

  Result<> Load(const std::vector<S3File>& files) {
    std::int64_t bytes = 0;
    for (const S3File& file : files) {
      bytes += file.object.bytes;
    }
    INFERD_TRY(MakeRoom(folder_, bytes, options_.cache_bytes));
    for (int round = 1;; ++round) {
      INFERD_TRY(Open(files));
      if (reads_.empty()) {
        break;
      }
      INFERD_ASSIGN(const std::vector<std::string> wrong, ReadAndVerify());
      INFERD_TRY(Judge(wrong, round == kRounds));
    }
    std::vector<CatalogFile> names;
    for (const S3File& file : files) {
      names.push_back({file.name, file.object.bytes, ""});
    }
    return WriteManifest(folder_, names);
  }

 private:
  /// The files that do not have their names yet: those are complete and verified.
  Result<> Open(const std::vector<S3File>& files) {
    reads_.clear();
    parts_.clear();
    std::int64_t missing = 0;
    for (const S3File& file : files) {
      const fs::path path = fs::path(folder_) / file.name;
      std::error_code error;
      fs::create_directories(path.parent_path(), error);
      if (error) {
        return Unavailable("cannot create {}: {}", path.parent_path().string(), error.message());
      }
      if (fs::is_regular_file(path, error)) {
        continue;
      }
      INFERD_ASSIGN(std::unique_ptr<PartFile> part,
                    PartFile::Open(path.string(), file.object.bytes, file.object.etag));
      missing += file.object.bytes - part->have();
      reads_.push_back({file.object, part.get()});
      parts_.push_back(std::move(part));
    }
    missing_ = missing;
    return CheckSpace(folder_, missing);
  }

  Result<std::vector<std::string>> ReadAndVerify() {
    std::int64_t total = 0;
    for (const RangedRead& read : reads_) {
      total += read.object.bytes;
    }
    FetchProgress progress;
    progress.file = client_.location().Url();
    progress.total_bytes = total;
    const auto report = [&](std::int64_t received) {
      progress.done_bytes = total - missing_ + received;
      return !options_.progress || options_.progress(progress);
    };
    ObjectVerifier verifier(client_, reads_);
    INFERD_TRY(ReadRanges(client_, reads_, options_.connections, report));
    return verifier.Finish([&] { return !options_.progress || options_.progress(progress); });
  }

  Result<> Judge(const std::vector<std::string>& wrong, bool last) {
    for (std::size_t i = 0; i < wrong.size(); ++i) {
      if (wrong[i].empty()) {
        continue;
      }
      const std::string url = client_.location().Url(reads_[i].object.key);
      INFERD_TRY(parts_[i]->Clear());
      if (last) {
        return DataLoss("{} is corrupt: {}; it was read twice, and deleted", url, wrong[i]);
      }
      log::Warning("store", "{}: {}; reading it once more", url, wrong[i]);
    }
    return {};
  }

  const S3Client& client_;
  const FetchOptions& options_;
  const std::string folder_;
  std::vector<std::unique_ptr<PartFile>> parts_;
  std::vector<RangedRead> reads_;
  std::int64_t missing_ = 0;
};

S3Patience PatienceOf(const FetchOptions& options) {
  S3Patience patience;
  patience.connect_timeout_ms = options.connect_timeout_ms;
  patience.stall_timeout_ms = options.stall_timeout_ms;
  patience.max_attempts = options.max_attempts;
  patience.first_backoff_ms = options.first_backoff_ms;
  patience.give_up_ms = options.give_up_ms;
  return patience;
}

/// Two keys that become one file would be written over each other.
Result<std::vector<S3File>> Distinct(const S3Location& location, std::vector<S3File> files) {
  std::map<std::string_view, const S3File*> by_name;
  for (const S3File& file : files) {
    const auto [other, added] = by_name.emplace(file.name, &file);
    if (!added) {
      return InvalidArgument("{}: the objects {} and {} would both be the file {}",
                             location.Url(),
                             other->second->object.key,
                             file.object.key,
                             file.name);
    }
  }
  return files;
}

}  // namespace

std::string ModelIn(const std::string& folder, const S3Location& location) {
  return IsGgufKey(location.key) ? folder + "/" + fs::path(location.key).filename().string()
                                 : folder;
}

std::string VersionOf(const std::vector<S3File>& files) {
  std::string text;
  for (const S3File& file : files) {
    text += fmt::format("{}\n{}\n{}\n", file.name, file.object.bytes, file.object.etag);
  }
  return Hash(text);
}

std::string PrefixOf(const S3Location& location) {
  if (IsGgufKey(location.key)) {
    return std::string(StemOf(location.key));
  }
  return location.key.empty() ? "" : location.key + "/";
}

Result<S3Place> PlaceOf(std::string_view name) {
  S3Place place;
  INFERD_ASSIGN(place.location, ParseS3Location(name));
  INFERD_ASSIGN(place.settings, S3SettingsFromEnvironment());
  place.folder = FolderOf(place.location, place.settings);
  return place;
}

Result<std::vector<S3File>> ChooseS3Files(const S3Location& location,
                                          const std::vector<S3Object>& objects) {
  std::vector<S3File> files;
  if (IsGgufKey(location.key)) {
    const std::string_view stem = StemOf(location.key);
    bool found = false;
    for (const S3Object& object : objects) {
      found = found || object.key == location.key;
      const bool part = stem != location.key && IsGgufKey(object.key) && StemOf(object.key) == stem;
      const std::string name = fs::path(object.key).filename().string();
      if ((object.key == location.key || part) && IsSafeName(name)) {
        files.push_back({object, name});
      }
    }
    return found ? Distinct(location, std::move(files))
                 : NotFound("{}: no such object", location.Url());
  }
  const std::string folder = location.key.empty() ? "" : location.key + "/";
  std::vector<CatalogFile> listed;
  for (const S3Object& object : objects) {
    if (object.key.starts_with(folder) && IsSafeName(object.key.substr(folder.size()))) {
      listed.push_back({object.key.substr(folder.size()), object.bytes, ""});
    }
  }
  if (listed.empty()) {
    return NotFound("{} holds no object, and is none: name the folder of a model, or a .gguf file",
                    location.Url());
  }
  INFERD_ASSIGN(const auto chosen, ChooseModelFiles(location.Url(), listed, ""));
  for (const CatalogFile& file : chosen) {
    const auto object = std::ranges::find(objects, folder + file.name, &S3Object::key);
    files.push_back({*object, file.name});
  }
  return Distinct(location, std::move(files));
}

Result<std::string> ResolveS3(std::string_view name) {
  INFERD_ASSIGN(const S3Place place, PlaceOf(name));
  return LatestIn(place.location, place.folder);
}

Result<std::string> FetchS3(std::string_view name, const FetchOptions& options) {
  INFERD_ASSIGN(const S3Place place, PlaceOf(name));
  const auto& [location, settings, folder] = place;
  FetchProgress waiting;
  waiting.file = location.Url();
  // Asked on the calling thread only: other threads are stopped by ReadRanges.
  const auto alive = [&] { return !options.progress || options.progress(waiting); };
  // Who can do without the store does not wait for it long.
  auto latest = LatestIn(location, folder);
  S3Patience patience = PatienceOf(options);
  patience.max_attempts = latest.ok() ? std::min(patience.max_attempts, 2) : patience.max_attempts;
  const S3Client asking(settings, location, patience, alive);
  HttpConnection connection;
  auto objects = asking.List(&connection, PrefixOf(location));
  if (!objects.ok()) {
    if (objects.error().code() != Code::kUnavailable || !latest.ok()) {
      return objects.error();
    }
    log::Warning("store",
                 "{}; using what was loaded before, which may be older than what the store has",
                 objects.error().message());
    return latest;
  }
  INFERD_ASSIGN(const std::vector<S3File> files, ChooseS3Files(location, *objects));
  const std::string version = VersionOf(files);
  const std::string path = folder + "/" + version;
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    return Unavailable("cannot create {}: {}", path, error.message());
  }
  INFERD_TRY(HoldModel(path));
  if (!IsComplete(path)) {
    INFERD_ASSIGN(const FileLock lock, FileLock::Exclusive(folder + "/lock", alive));
    if (!IsComplete(path)) {
      const S3Client reading(settings, location, PatienceOf(options), nullptr);
      INFERD_TRY(Loader(reading, options, path).Load(files));
    }
  }
  std::string model = ModelIn(path, location);
  if (!latest.ok() || *latest != model) {  // the cache may be read-only
    INFERD_TRY(base::WriteFileAtomic(folder + "/latest", version));
  }
  return model;
}

}  // namespace inferd::store
