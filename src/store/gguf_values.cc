// SPDX-License-Identifier: Apache-2.0
// Typed getters of GgufFile: numbers of any width, strings, arrays.
#include "base/error.h"
#include "store/gguf_file.h"

#include <cstring>
#include <limits>

namespace inferd::store {
namespace {

template <class T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Value i of an integer type; nullopt if it is not one or does not fit.
std::optional<std::int64_t> IntAt(const GgufValue& value, std::uint64_t i) {
  const std::byte* data = value.bytes.data();
  switch (value.type) {
    case GgufType::kU8:
      return Load<std::uint8_t>(data + i);
    case GgufType::kI8:
      return Load<std::int8_t>(data + i);
    case GgufType::kU16:
      return Load<std::uint16_t>(data + i * 2);
    case GgufType::kI16:
      return Load<std::int16_t>(data + i * 2);
    case GgufType::kU32:
      return Load<std::uint32_t>(data + i * 4);
    case GgufType::kI32:
      return Load<std::int32_t>(data + i * 4);
    case GgufType::kI64:
      return Load<std::int64_t>(data + i * 8);
    case GgufType::kU64: {
      const auto number = Load<std::uint64_t>(data + i * 8);
      if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return std::nullopt;
      }
      return static_cast<std::int64_t>(number);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> FloatAt(const GgufValue& value, std::uint64_t i) {
  if (value.type == GgufType::kF32) {
    return Load<float>(value.bytes.data() + i * 4);
  }
  if (value.type == GgufType::kF64) {
    return Load<double>(value.bytes.data() + i * 8);
  }
  const auto number = IntAt(value, i);
  return number ? std::optional<double>(static_cast<double>(*number)) : std::nullopt;
}

}  // namespace

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto place = values_.find(key);
  return place == values_.end() ? nullptr : &place->second;
}

std::vector<std::string_view> GgufFile::Keys() const {
  std::vector<std::string_view> keys;
  keys.reserve(values_.size());
  for (const auto& [key, value] : values_) {
    keys.push_back(key);
  }
  return keys;
}

Result<std::optional<std::int64_t>> GgufFile::Int(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return std::optional<std::int64_t>();
  }
  const auto number = value->array ? std::nullopt : IntAt(*value, 0);
  if (!number) {
    return InvalidArgument("{}: key {} is not a whole number", path(), key);
  }
  return number;
}

Result<std::optional<double>> GgufFile::Float(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return std::optional<double>();
  }
  const auto number = value->array ? std::nullopt : FloatAt(*value, 0);
  if (!number) {
    return InvalidArgument("{}: key {} is not a number", path(), key);
  }
  return number;
}

Result<std::optional<bool>> GgufFile::Bool(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return std::optional<bool>();
  }
  if (value->array || value->type != GgufType::kBool) {
    return InvalidArgument("{}: key {} is not a truth value", path(), key);
  }
  return std::optional<bool>(value->bytes[0] != std::byte{0});
}

Result<std::optional<std::string>> GgufFile::String(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return std::optional<std::string>();
  }
  if (value->array || value->type != GgufType::kString) {
    return InvalidArgument("{}: key {} is not a string", path(), key);
  }
  return std::optional<std::string>(
      std::string(reinterpret_cast<const char*>(value->bytes.data()) + 8, value->bytes.size() - 8));
}

Result<std::vector<std::int64_t>> GgufFile::Ints(std::string_view key) const {
  std::vector<std::int64_t> numbers;
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return numbers;
  }
  numbers.reserve(value->type == GgufType::kString ? 0 : value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const auto number = IntAt(*value, i);
    if (!number) {
      return InvalidArgument("{}: key {} does not hold whole numbers", path(), key);
    }
    numbers.push_back(*number);
  }
  return numbers;
}

Result<std::vector<float>> GgufFile::Floats(std::string_view key) const {
  std::vector<float> numbers;
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return numbers;
  }
  numbers.reserve(value->type == GgufType::kString ? 0 : value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const auto number = FloatAt(*value, i);
    if (!number) {
      return InvalidArgument("{}: key {} does not hold numbers", path(), key);
    }
    numbers.push_back(static_cast<float>(*number));
  }
  return numbers;
}

Result<std::vector<std::string>> GgufFile::Strings(std::string_view key,
                                                   std::uint64_t max_length) const {
  std::vector<std::string> strings;
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return strings;
  }
  if (value->type != GgufType::kString) {
    return InvalidArgument("{}: key {} does not hold strings", path(), key);
  }
  strings.reserve(value->count);
  const std::byte* at = value->bytes.data();  // lengths were checked when the header was read
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const auto length = Load<std::uint64_t>(at);
    if (length > max_length) {
      return InvalidArgument("{}: string {} of key {} has {} bytes, the limit is {}",
                             path(),
                             i,
                             key,
                             length,
                             max_length);
    }
    strings.emplace_back(reinterpret_cast<const char*>(at + 8), length);
    at += 8 + length;
  }
  return strings;
}

}  // namespace inferd::store
