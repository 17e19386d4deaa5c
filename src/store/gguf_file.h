// SPDX-License-Identifier: Apache-2.0
// GgufFile: header of one GGUF file (version 2 or 3, little-endian), read without trusting it:
// every count and length is checked against the bytes that are left before anything is allocated or
// read.
#pragma once

#include "base/file.h"
#include "inferd/result.h"
#include "store/tensor_source.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace inferd::store {

/// Types of metadata values, numbered as in the file.
enum class GgufType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

/// A value as a view of the mapped file: `count` values of `type` (1 unless an array).
struct GgufValue {
  GgufType type = GgufType::kU8;
  bool array = false;
  std::uint64_t count = 0;
  std::span<const std::byte> bytes;
};

/// Immutable. Getters answer nullopt for an absent key and refuse a value of the wrong type, naming
/// file and key.
class GgufFile {
 public:
  static Result<GgufFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  /// Offsets are absolute; TensorInfo::file is 0.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// Gives up mapping and tensors, for a TensorSource; the getters must not be used afterwards.
  base::MappedFile TakeFile() { return std::move(file_); }
  std::vector<TensorInfo> TakeTensors() { return std::move(tensors_); }

  bool Has(std::string_view key) const { return values_.contains(key); }
  std::vector<std::string_view> Keys() const;
  Result<std::optional<std::int64_t>> Int(std::string_view key) const;
  Result<std::optional<double>> Float(std::string_view key) const;
  Result<std::optional<bool>> Bool(std::string_view key) const;
  Result<std::optional<std::string>> String(std::string_view key) const;
  /// A scalar counts as an array of one.
  Result<std::vector<std::int64_t>> Ints(std::string_view key) const;
  Result<std::vector<float>> Floats(std::string_view key) const;
  /// Refuses strings longer than `max_length` bytes.
  Result<std::vector<std::string>> Strings(std::string_view key, std::uint64_t max_length) const;

 private:
  explicit GgufFile(base::MappedFile file) : file_(std::move(file)) {}
  Result<> Parse();
  const GgufValue* Find(std::string_view key) const;

  base::MappedFile file_;
  std::unordered_map<std::string_view, GgufValue> values_;  // keys are views of the mapping
  std::vector<TensorInfo> tensors_;
};

/// All parts of the GGUF model that the file at `path` belongs to, in order; one for a model that
/// is not split. Refuses absent and foreign parts by name.
Result<std::vector<GgufFile>> OpenGgufParts(const std::string& path);

}  // namespace inferd::store
