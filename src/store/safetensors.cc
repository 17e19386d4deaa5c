// SPDX-License-Identifier: Apache-2.0
#include "store/safetensors.h"

#include "base/checked_math.h"
#include "base/error.h"
#include "store/json_util.h"
#include "store/list_folder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

namespace inferd::store {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::uint64_t kMaxIndexBytes = 100'000'000;

// Types without a place in a decoder: buffers of whole numbers. Their sizes are checked, then they
// are left out.
struct OtherType {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array kLeftOut = {
    OtherType{"BOOL", 1},
    OtherType{"I16", 2},
    OtherType{"U16", 2},
    OtherType{"U32", 4},
    OtherType{"I64", 8},
    OtherType{"U64", 8},
};

struct Entry {
  TensorInfo tensor;
  bool kept = true;
};

Result<std::uint64_t> BytesOf(const std::string& what, const std::string& dtype, Entry* entry) {
  for (const OtherType& type : kLeftOut) {
    if (type.name == dtype) {
      entry->kept = false;
      INFERD_ASSIGN(const auto count, CheckedTensorBytes(what, entry->tensor.shape, DType::kU8));
      const auto bytes = base::CheckedMul(count, type.bytes);
      if (!bytes) {
        return InvalidArgument("{}: more bytes than 64 bits count", what);
      }
      return *bytes;
    }
  }
  const auto type = DTypeFromName(dtype);
  if (!type || BlockElements(*type) != 1) {
    return Unimplemented(
        "{}: type {} is not supported; F32, F16, BF16 and F8_E4M3 are", what, dtype);
  }
  entry->tensor.dtype = *type;
  return CheckedTensorBytes(what, entry->tensor.shape, *type);
}

Result<Entry> ReadEntry(const base::MappedFile& file,
                        const std::string& name,
                        const Json& value,
                        std::uint64_t data_begin) {
  const std::string what = fmt::format("{}: tensor {}", file.path(), name);
  if (!value.is_object()) {
    return InvalidArgument("{} is not a JSON object", what);
  }
  const JsonFields fields(what, value);
  Entry entry;
  entry.tensor.name = name;
  INFERD_ASSIGN(const auto dtype, fields.String("dtype"));
  const Json* shape = fields.Get("shape");
  const Json* range = fields.Get("data_offsets");
  if (!dtype || shape == nullptr || !shape->is_array() || range == nullptr || !range->is_array() ||
      range->size() != 2) {
    return InvalidArgument("{} lacks dtype, shape or the two data_offsets", what);
  }
  INFERD_ASSIGN(entry.tensor.shape, fields.Ints("shape"));
  INFERD_ASSIGN(const auto bytes, BytesOf(what, *dtype, &entry));
  INFERD_ASSIGN(const auto offsets, fields.Ints("data_offsets"));
  const std::int64_t begin = offsets[0];
  const std::int64_t end = offsets[1];
  const std::uint64_t data_bytes = file.size() - data_begin;
  if (begin < 0 || end < begin) {
    return InvalidArgument("{}: data_offsets [{}, {}] are not a range", what, begin, end);
  }
  if (static_cast<std::uint64_t>(end) > data_bytes) {
    return InvalidArgument("{} ends at data byte {}, but the file has only {}; is it cut short?",
                           what,
                           end,
                           data_bytes);
  }
  entry.tensor.bytes = static_cast<std::uint64_t>(end - begin);
  if (entry.tensor.bytes != bytes) {
    return InvalidArgument("{} has {} bytes in the file, but its shape and type need {}",
                           what,
                           entry.tensor.bytes,
                           bytes);
  }
  entry.tensor.offset = data_begin + static_cast<std::uint64_t>(begin);
  return entry;
}

// The format wants the data covered exactly: no overlap, no gap, nothing behind.
Result<> CheckCover(const base::MappedFile& file,
                    std::uint64_t data_begin,
                    const std::vector<Entry>& entries) {
  std::vector<const TensorInfo*> order;
  order.reserve(entries.size());
  for (const Entry& entry : entries) {
    order.push_back(&entry.tensor);
  }
  std::ranges::sort(order, [](const TensorInfo* a, const TensorInfo* b) {
    return std::tie(a->offset, a->bytes) < std::tie(b->offset, b->bytes);
  });
  std::uint64_t covered = data_begin;
  std::string_view last = "the header";
  for (const TensorInfo* tensor : order) {
    if (tensor->offset < covered) {
      return InvalidArgument("{}: tensor {} begins at data byte {}, inside {}, which ends at {}",
                             file.path(),
                             tensor->name,
                             tensor->offset - data_begin,
                             last,
                             covered - data_begin);
    }
    if (tensor->offset > covered) {
      return InvalidArgument("{}: data bytes {} to {} before tensor {} belong to no tensor",
                             file.path(),
                             covered - data_begin,
                             tensor->offset - data_begin,
                             tensor->name);
    }
    covered = tensor->offset + tensor->bytes;
    last = tensor->name;
  }
  if (covered != file.size()) {
    return InvalidArgument(
        "{}: {} bytes follow the last tensor, {}", file.path(), file.size() - covered, last);
  }
  return {};
}

// `names` receives all tensors, those left out included.
Result<std::vector<TensorInfo>> ReadHeader(const base::MappedFile& file,
                                           std::uint32_t index,
                                           std::vector<std::string>* names) {
  std::uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) {
    return InvalidArgument(
        "{}: {} bytes are too few for a safetensors file", file.path(), file.size());
  }
  std::memcpy(&header_bytes, file.bytes().data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - sizeof(header_bytes)) {
    return InvalidArgument("{}: the header claims {} bytes; the file has {}, the limit is {}",
                           file.path(),
                           header_bytes,
                           file.size(),
                           kMaxHeaderBytes);
  }
  const std::string_view text(
      reinterpret_cast<const char*>(file.bytes().data()) + sizeof(header_bytes), header_bytes);
  const std::uint64_t data_begin = sizeof(header_bytes) + header_bytes;
  INFERD_ASSIGN(const Json header, ParseJsonObject(file.path() + ": header", text));
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      INFERD_ASSIGN(Entry entry, ReadEntry(file, name, value, data_begin));
      entry.tensor.file = index;
      entries.push_back(std::move(entry));
    }
  }
  INFERD_TRY(CheckCover(file, data_begin, entries));
  std::vector<TensorInfo> tensors;
  for (Entry& entry : entries) {
    names->push_back(entry.tensor.name);
    if (entry.kept) {
      tensors.push_back(std::move(entry.tensor));
    }
  }
  return tensors;
}

// Names of the shards, and where the index places each tensor (empty without an index).
struct Shards {
  std::vector<std::string> names;
  std::map<std::string, std::string> placement;
};

Result<Shards> ReadIndex(const fs::path& folder, const std::string& index_path) {
  INFERD_ASSIGN(const std::string text, base::ReadFile(index_path, kMaxIndexBytes));
  INFERD_ASSIGN(const Json index, ParseJsonObject(index_path, text));
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    return InvalidArgument("{}: weight_map is absent or not an object", index_path);
  }
  Shards shards;
  std::set<std::string> names;
  for (const auto& [tensor, shard] : map->items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    if (name.empty() || name.starts_with('.') || name.find('/') != std::string::npos) {
      return InvalidArgument("{}: tensor {} is placed in \"{}\", which is not a file of the folder",
                             index_path,
                             tensor,
                             name);
    }
    shards.placement[tensor] = name;
    names.insert(name);
  }
  std::string absent;
  for (const std::string& name : names) {
    std::error_code ignored;
    if (!fs::exists(folder / name, ignored)) {
      absent += (absent.empty() ? "" : ", ") + name;
    }
  }
  if (!absent.empty()) {
    return NotFound("{} names shards that are absent: {}", index_path, absent);
  }
  shards.names.assign(names.begin(), names.end());
  return shards;
}

// Without an index: the one complete set of numbered files.
Result<Shards> FindNumbered(const fs::path& folder) {
  static const std::regex kPattern(R"((.*)-(\d{5})-of-(\d{5})\.safetensors)");
  std::map<std::pair<std::string, int>, std::set<int>> sets;
  std::vector<std::string> others;
  for (const fs::path& path : ListFolder(folder)) {
    const std::string name = path.filename().string();
    std::smatch match;
    if (std::regex_match(name, match, kPattern)) {
      sets[{match[1], std::stoi(match[3])}].insert(std::stoi(match[2]));
    } else if (name.ends_with(".safetensors")) {
      others.push_back(name);
    }
  }
  if (sets.empty() && others.size() == 1) {
    return Shards{others, {}};
  }
  if (sets.size() != 1) {
    return NotFound(
        "{} holds neither model.safetensors, nor an index, nor one set of numbered shards",
        folder.string());
  }
  const auto& [key, present] = *sets.begin();
  const auto& [prefix, count] = key;
  Shards shards;
  std::string absent;
  for (int i = 1; i <= count; ++i) {
    shards.names.push_back(fmt::format("{}-{:05}-of-{:05}.safetensors", prefix, i, count));
    if (!present.contains(i)) {
      absent += (absent.empty() ? "" : ", ") + shards.names.back();
    }
  }
  if (!absent.empty()) {
    return NotFound("shards of the model in {} are absent: {}", folder.string(), absent);
  }
  return shards;
}

Result<Shards> FindShards(const fs::path& folder) {
  const fs::path index = folder / "model.safetensors.index.json";
  std::error_code ignored;
  if (fs::exists(index, ignored)) {
    return ReadIndex(folder, index.string());
  }
  if (fs::exists(folder / "model.safetensors", ignored)) {
    return Shards{{"model.safetensors"}, {}};
  }
  return FindNumbered(folder);
}

// Every tensor is in the shard that the index says, and every tensor of a shard is in the index.
Result<> CheckPlacement(const Shards& shards,
                        const std::string& name,
                        const std::vector<std::string>& tensors,
                        std::set<std::string>* found) {
  for (const std::string& tensor : tensors) {
    const auto place = shards.placement.find(tensor);
    if (place == shards.placement.end() || place->second != name) {
      return InvalidArgument(
          "{}: tensor {} is here, but the index {}",
          name,
          tensor,
          place == shards.placement.end() ? "does not name it" : "places it in " + place->second);
    }
    found->insert(tensor);
  }
  return {};
}

}  // namespace

Result<TensorSource> OpenSafetensors(const std::string& folder,
                                     const std::optional<QuantConfig>& quant) {
  INFERD_ASSIGN(const Shards shards, FindShards(folder));
  std::vector<base::MappedFile> files;
  std::vector<TensorInfo> all;
  std::set<std::string> found;
  for (const std::string& name : shards.names) {
    INFERD_ASSIGN(base::MappedFile file,
                  base::MappedFile::Open((fs::path(folder) / name).string()));
    std::vector<std::string> names;
    INFERD_ASSIGN(std::vector<TensorInfo> tensors,
                  ReadHeader(file, static_cast<std::uint32_t>(files.size()), &names));
    if (!shards.placement.empty()) {
      INFERD_TRY(CheckPlacement(shards, name, names, &found));
    }
    files.push_back(std::move(file));
    std::ranges::move(tensors, std::back_inserter(all));
  }
  for (const auto& [tensor, name] : shards.placement) {
    if (!found.contains(tensor)) {
      return InvalidArgument("{}: the index places tensor {} here, but it is absent",
                             (fs::path(folder) / name).string(),
                             tensor);
    }
  }
  if (quant) {
    INFERD_TRY(FoldQuantised(*quant, files, &all));
  }
  return TensorSource::Make(std::move(files), std::move(all));
}

}  // namespace inferd::store
