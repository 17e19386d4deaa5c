// SPDX-License-Identifier: Apache-2.0
#include "store/partial_model.h"

#include "base/error.h"
#include "base/log.h"
#include "store/hub.h"
#include "store/model_cache.h"
#include "store/quantised_parts.h"
#include "store/ranged_read.h"
#include "store/resolve.h"
#include "store/s3_fetch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

namespace inferd::store {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kFirstHead = 1 << 20;
constexpr std::int64_t kLastHead = 1 << 30;
constexpr int kHeadGrowth = 4;
/// Fetching so much that nobody asked for is cheaper than another request.
constexpr std::int64_t kGap = 256 << 10;
constexpr int kConnections = 8;

bool IsWeights(std::string_view name) {
  return name.ends_with(".safetensors") || name.ends_with(".gguf");
}

std::vector<ByteRange> Joined(std::vector<ByteRange> ranges) {
  std::ranges::sort(ranges, {}, &ByteRange::begin);
  std::vector<ByteRange> joined;
  for (const ByteRange& range : ranges) {
    if (!joined.empty() && range.begin - joined.back().end <= kGap) {
      joined.back().end = std::max(joined.back().end, range.end);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

struct SharedParts {
  std::string name;
  std::string version;
};

std::optional<SharedParts> ParseShared(std::string_view text) {
  const auto mark = text.rfind('#');
  if (!IsS3Name(text) || mark == std::string_view::npos || mark + 1 == text.size() ||
      !std::ranges::all_of(text.substr(mark + 1),
                           [](unsigned char c) { return std::isxdigit(c) != 0; })) {
    return std::nullopt;
  }
  return SharedParts{std::string(text.substr(0, mark)), std::string(text.substr(mark + 1))};
}

}  // namespace

/// Every use takes the lock of the name, so that one process at a time reads from the store.
struct PartialModel::Files {
  Files(S3Client store, std::string folder_, std::string lock_, std::function<bool()> alive_)
      : client(std::move(store)),
        folder(std::move(folder_)),
        lock(std::move(lock_)),
        alive(std::move(alive_)) {}

  S3Client client;
  std::string folder;
  std::string lock;
  std::function<bool()> alive;
  std::vector<S3File> files;

  bool Alive() const { return !alive || alive(); }

  /// The lock is held. Ranges by file name; what exceeds a file is left out.
  Result<> Read(const std::map<std::string, std::vector<ByteRange>>& wanted) const {
    std::vector<std::unique_ptr<PartFile>> parts;
    std::vector<RangedRead> reads;
    std::int64_t missing = 0;
    for (const S3File& file : files) {
      const auto place = wanted.find(file.name);
      if (place == wanted.end()) {
        continue;
      }
      const fs::path path = fs::path(folder) / file.name;
      std::error_code error;
      fs::create_directories(path.parent_path(), error);
      INFERD_ASSIGN(
          std::unique_ptr<PartFile> part,
          PartFile::Open(path.string(), file.object.bytes, file.object.etag, PartPlace::kInPlace));
      RangedRead read{file.object, part.get(), Joined(place->second)};
      for (ByteRange& range : read.wanted) {
        range.end = std::min(range.end, file.object.bytes);
        for (const ByteRange& gap : part->Missing(range)) {
          missing += gap.size();
        }
      }
      reads.push_back(std::move(read));
      parts.push_back(std::move(part));
    }
    if (missing == 0) {
      return {};
    }
    log::Info(
        "store", "{}: reading {} bytes that this host needs", client.location().Url(), missing);
    return ReadRanges(client, reads, kConnections, [this](std::int64_t) { return Alive(); });
  }

  /// Configs whole, and the head of each file of weights.
  Result<> ReadHeads(std::int64_t head) const {
    std::map<std::string, std::vector<ByteRange>> wanted;
    for (const S3File& file : files) {
      const std::int64_t end =
          IsWeights(file.name) ? std::min(head, file.object.bytes) : file.object.bytes;
      wanted[file.name] = {{0, end}};
    }
    return Read(wanted);
  }

  std::string ModelPath() const { return ModelIn(folder, client.location()); }
};

namespace {

/// Where the longest header of the files ends.
std::int64_t LastHeadByte(const Model& model) {
  std::map<std::uint32_t, std::int64_t> first;
  for (const TensorInfo& tensor : model.tensors.tensors()) {
    const TensorInfo& stored = tensor.parts == nullptr ? tensor : tensor.parts->weight;
    const auto offset = static_cast<std::int64_t>(stored.offset);
    const auto place = first.emplace(stored.file, offset).first;
    place->second = std::min(place->second, offset);
  }
  std::int64_t last = 0;
  for (const auto& [file, offset] : first) {
    last = std::max(last, offset);
  }
  return last;
}

/// What OpenModel itself reads of the tensors: factors of the rotation, and of quantised layers
/// what their type depends on, which is the order of groups and, of int8 values, the scales. All of
/// the model, so that each host comes to the types that the leader has planned with.
std::vector<FileRange> ReadWhileOpening(const Model& model) {
  std::vector<FileRange> ranges;
  for (const TensorInfo& tensor : model.tensors.tensors()) {
    if (tensor.parts == nullptr) {
      if (tensor.name.starts_with("rope_")) {
        ranges.push_back(RangeOf(tensor));
      }
      continue;
    }
    const QuantisedParts& parts = *tensor.parts;
    if (parts.group_index) {  // zeros, where it is not there yet
      ranges.push_back(RangeOf(*parts.group_index));
    }
    if (parts.layout == QuantisedParts::Layout::kScaled && parts.weight.dtype == DType::kI8) {
      ranges.push_back(RangeOf(parts.scales));
    }
  }
  return ranges;
}

/// A header that is cut off does not parse, or its tensors begin behind what is there: more of it.
Result<Model> OpenByHeads(const std::string& path,
                          std::string_view quantization,
                          bool keep_fp8,
                          const std::function<Result<>(std::int64_t)>& read_heads) {
  for (std::int64_t head = kFirstHead;; head *= kHeadGrowth) {
    INFERD_TRY(read_heads(head));
    auto model = OpenModel(path, quantization, keep_fp8);
    if (model.ok() && LastHeadByte(*model) <= head) {
      return model;
    }
    if (head >= kLastHead) {
      return model.ok() ? InvalidArgument("{}: its header has more than {} bytes", path, kLastHead)
                        : Result<Model>(std::move(model).error());
    }
  }
}

}  // namespace

FileRange RangeOf(const TensorInfo& tensor) {
  return {tensor.file,
          static_cast<std::int64_t>(tensor.offset),
          static_cast<std::int64_t>(tensor.offset + tensor.bytes)};
}

std::string SharedName(std::string_view name, const std::string& path) {
  if (!IsS3Name(name)) {
    return path;
  }
  const fs::path place(path);
  const bool file = IsWeights(path);
  return fmt::format("{}#{}", name, (file ? place.parent_path() : place).filename().string());
}

PartialModel::PartialModel() = default;
PartialModel::PartialModel(PartialModel&&) noexcept = default;
PartialModel& PartialModel::operator=(PartialModel&&) noexcept = default;
PartialModel::~PartialModel() = default;

Result<PartialModel> PartialModel::Open(const std::string& shared_name,
                                        std::string_view quantization,
                                        std::function<bool()> alive,
                                        bool keep_fp8) {
  PartialModel partial;
  const auto shared = ParseShared(shared_name);
  if (!shared) {
    INFERD_TRY(HoldModel(shared_name));
    INFERD_ASSIGN(partial.model_, OpenModel(shared_name, quantization, keep_fp8));
    return partial;
  }
  INFERD_ASSIGN(const S3Place place, PlaceOf(shared->name));
  const std::string whole = place.folder + "/" + shared->version;
  if (IsComplete(whole)) {
    INFERD_TRY(HoldModel(whole));
    INFERD_ASSIGN(partial.model_,
                  OpenModel(ModelIn(whole, place.location), quantization, keep_fp8));
    return partial;
  }
  const std::string folder = whole + ".partial";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return Unavailable("cannot create {}: {}", folder, error.message());
  }
  INFERD_TRY(HoldModel(folder));
  partial.files_ = std::make_unique<Files>(
      S3Client(place.settings, place.location, {}, nullptr), folder, place.folder + "/lock", alive);
  Files& files = *partial.files_;
  // On this thread only; the threads that read are stopped by ReadRanges.
  const S3Client asking(place.settings, place.location, {}, alive);
  HttpConnection connection;
  INFERD_ASSIGN(const auto objects, asking.List(&connection, PrefixOf(place.location)));
  INFERD_ASSIGN(files.files, ChooseS3Files(place.location, objects));
  if (const std::string version = VersionOf(files.files); version != shared->version) {
    return Aborted(
        "{} was changed in the store since the leader has read it; start all hosts again",
        shared->name);
  }
  const auto read_heads = [&](std::int64_t head) -> Result<> {
    INFERD_ASSIGN(const FileLock lock,
                  FileLock::Exclusive(files.lock, [&] { return files.Alive(); }));
    return files.ReadHeads(head);
  };
  INFERD_ASSIGN(partial.model_, OpenByHeads(files.ModelPath(), quantization, keep_fp8, read_heads));
  if (const auto ranges = ReadWhileOpening(partial.model_); !ranges.empty()) {
    INFERD_TRY(partial.Provide(ranges));
    INFERD_ASSIGN(partial.model_, OpenModel(files.ModelPath(), quantization, keep_fp8));
  }
  return partial;
}

Result<> PartialModel::Provide(const std::vector<FileRange>& ranges) {
  if (whole()) {
    return {};
  }
  std::map<std::string, std::vector<ByteRange>> wanted;
  for (const FileRange& range : ranges) {
    const fs::path path = model_.tensors.files()[range.file].path();
    wanted[path.lexically_relative(files_->folder).string()].push_back({range.begin, range.end});
  }
  INFERD_ASSIGN(const FileLock lock,
                FileLock::Exclusive(files_->lock, [this] { return files_->Alive(); }));
  return files_->Read(wanted);
}

}  // namespace inferd::store
