// SPDX-License-Identifier: Apache-2.0
// Split GGUF models: NAME-00001-of-00003.gguf and its siblings, found from any one of them.
#include "base/error.h"
#include "store/gguf_file.h"

#include <charconv>
#include <filesystem>

namespace inferd::store {
namespace {

constexpr std::int64_t kMaxParts = 9999;

// "-00001-of-00003.gguf"
constexpr std::size_t kSuffixBytes = 20;

std::string PartName(std::string_view prefix, std::int64_t number, std::int64_t count) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, number, count);
}

// The part of the name before the split suffix; nullopt if the file is not named like a part.
std::optional<std::string> PartPrefix(const std::string& path,
                                      std::int64_t number,
                                      std::int64_t count) {
  if (path.size() <= kSuffixBytes) {
    return std::nullopt;
  }
  std::string prefix = path.substr(0, path.size() - kSuffixBytes);
  if (PartName(prefix, number, count) != path) {
    return std::nullopt;
  }
  return prefix;
}

struct Split {
  std::int64_t number = 0;  // from 0
  std::int64_t count = 1;
  std::int64_t tensors = -1;  // of all parts together; -1: not said
};

Result<Split> SplitOf(const GgufFile& file) {
  INFERD_ASSIGN(const auto number, file.Int("split.no"));
  INFERD_ASSIGN(const auto count, file.Int("split.count"));
  INFERD_ASSIGN(const auto tensors, file.Int("split.tensors.count"));
  const Split split{number.value_or(0), count.value_or(1), tensors.value_or(-1)};
  if (split.count < 0 || split.count > kMaxParts) {
    return InvalidArgument(
        "{}: split.count {} is outside 0 to {}", file.path(), split.count, kMaxParts);
  }
  if (split.count > 1 && (split.number < 0 || split.number >= split.count)) {
    return InvalidArgument(
        "{}: split.no {} is not below split.count {}", file.path(), split.number, split.count);
  }
  return split;
}

Result<> CheckPart(const GgufFile& part, const Split& expected) {
  INFERD_ASSIGN(const Split split, SplitOf(part));
  if (split.count != expected.count) {
    return InvalidArgument("{}: split.count is {}, but the other parts say {}",
                           part.path(),
                           split.count,
                           expected.count);
  }
  if (split.number != expected.number) {
    return InvalidArgument("{}: split.no is {}, but its name says part {} of {}",
                           part.path(),
                           split.number,
                           expected.number + 1,
                           expected.count);
  }
  if (split.tensors != expected.tensors) {
    return InvalidArgument(
        "{}: split.tensors.count is {}, but the other parts say {}: a part of another model?",
        part.path(),
        split.tensors,
        expected.tensors);
  }
  return {};
}

}  // namespace

Result<std::vector<GgufFile>> OpenGgufParts(const std::string& path) {
  std::vector<GgufFile> parts;
  INFERD_ASSIGN(GgufFile given, GgufFile::Open(path));
  INFERD_ASSIGN(Split split, SplitOf(given));
  if (split.count <= 1) {
    parts.push_back(std::move(given));
    return parts;
  }
  const auto prefix = PartPrefix(path, split.number + 1, split.count);
  if (!prefix) {
    return InvalidArgument(
        "{} is part {} of {} of a split model, but is not named ...{}; restore the parts' names",
        path,
        split.number + 1,
        split.count,
        PartName("", split.number + 1, split.count));
  }
  std::string absent;
  for (std::int64_t i = 0; i < split.count; ++i) {
    const std::string name = PartName(*prefix, i + 1, split.count);
    std::error_code ignored;
    if (!std::filesystem::exists(name, ignored)) {
      absent += (absent.empty() ? "" : ", ") + name;
    }
  }
  if (!absent.empty()) {
    return NotFound("parts of the split model {} are absent: {}", path, absent);
  }
  std::uint64_t num_tensors = 0;
  for (std::int64_t i = 0; i < split.count; ++i) {
    INFERD_ASSIGN(GgufFile part, GgufFile::Open(PartName(*prefix, i + 1, split.count)));
    INFERD_TRY(CheckPart(part, {i, split.count, split.tensors}));
    num_tensors += part.tensors().size();
    parts.push_back(std::move(part));
  }
  if (split.tensors >= 0 && num_tensors != static_cast<std::uint64_t>(split.tensors)) {
    return InvalidArgument(
        "{}: split.tensors.count is {}, but the {} parts hold {} tensors: a part of another model?",
        path,
        split.tensors,
        split.count,
        num_tensors);
  }
  return parts;
}

}  // namespace inferd::store
