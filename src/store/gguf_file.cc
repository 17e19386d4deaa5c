// SPDX-License-Identifier: Apache-2.0
#include "store/gguf_file.h"

#include "base/checked_math.h"
#include "base/error.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace inferd::store {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kMaxKeyBytes = 65'535;
constexpr std::uint64_t kMaxTensorNameBytes = 512;
constexpr std::uint32_t kMaxDimensions = 4;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMaxAlignment = 1U << 20U;

// Smallest encodings, to bound counts by the bytes that are left.
constexpr std::uint64_t kMinPairBytes = 8 + 1 + 4 + 1;
constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

struct GgmlType {
  std::uint32_t number;
  std::string_view name;
  std::optional<DType> dtype;
};

constexpr std::array kGgmlTypes = {
    GgmlType{0, "F32", DType::kF32},
    GgmlType{1, "F16", DType::kF16},
    GgmlType{2, "Q4_0", DType::kQ4_0},
    GgmlType{3, "Q4_1", DType::kQ4_1},
    GgmlType{6, "Q5_0", DType::kQ5_0},
    GgmlType{7, "Q5_1", DType::kQ5_1},
    GgmlType{8, "Q8_0", DType::kQ8_0},
    GgmlType{9, "Q8_1", {}},
    GgmlType{10, "Q2_K", DType::kQ2_K},
    GgmlType{11, "Q3_K", DType::kQ3_K},
    GgmlType{12, "Q4_K", DType::kQ4_K},
    GgmlType{13, "Q5_K", DType::kQ5_K},
    GgmlType{14, "Q6_K", DType::kQ6_K},
    GgmlType{15, "Q8_K", {}},
    GgmlType{16, "IQ2_XXS", {}},
    GgmlType{17, "IQ2_XS", {}},
    GgmlType{18, "IQ3_XXS", {}},
    GgmlType{19, "IQ1_S", {}},
    GgmlType{20, "IQ4_NL", DType::kIQ4_NL},
    GgmlType{21, "IQ3_S", {}},
    GgmlType{22, "IQ2_S", {}},
    GgmlType{23, "IQ4_XS", DType::kIQ4_XS},
    GgmlType{24, "I8", DType::kI8},
    GgmlType{25, "I16", {}},
    GgmlType{26, "I32", DType::kI32},
    GgmlType{27, "I64", {}},
    GgmlType{28, "F64", {}},
    GgmlType{29, "IQ1_M", {}},
    GgmlType{30, "BF16", DType::kBF16},
    GgmlType{34, "TQ1_0", {}},
    GgmlType{35, "TQ2_0", {}},
    GgmlType{39, "MXFP4", DType::kMXFP4},
};

Result<DType> DTypeOfGgml(std::uint32_t number, std::string_view what) {
  for (const GgmlType& type : kGgmlTypes) {
    if (type.number == number) {
      if (!type.dtype) {
        return Unimplemented("{}: tensor type {} is not supported", what, type.name);
      }
      return *type.dtype;
    }
  }
  return InvalidArgument("{}: tensor type {} is not a known GGUF type", what, number);
}

// Bytes of a value of a fixed-size type; 0 for strings, arrays and unknown types.
std::uint64_t FixedBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return 0;
}

bool IsKnown(std::uint32_t type) { return type <= static_cast<std::uint32_t>(GgufType::kF64); }

template <class T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// A cursor over the header that never leaves the file.
class Reader {
 public:
  explicit Reader(const base::MappedFile& file) : path_(file.path()), bytes_(file.bytes()) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t left() const { return bytes_.size() - position_; }

  template <class T>
  Result<T> Number(std::string_view what) {
    INFERD_ASSIGN(const auto bytes, Bytes(sizeof(T), what));
    return Load<T>(bytes.data());
  }

  Result<std::span<const std::byte>> Bytes(std::uint64_t count, std::string_view what) {
    if (count > left()) {
      return InvalidArgument("{}: {} needs {} bytes at offset {}, but the file has {} in all",
                             path_,
                             what,
                             count,
                             position_,
                             bytes_.size());
    }
    const auto result = bytes_.subspan(position_, count);
    position_ += count;
    return result;
  }

  Result<std::string_view> String(std::uint64_t max_length, std::string_view what) {
    INFERD_ASSIGN(const auto length, Number<std::uint64_t>(what));
    if (length > max_length) {
      return InvalidArgument(
          "{}: {} has a length of {}, the limit is {}", path_, what, length, max_length);
    }
    INFERD_ASSIGN(const auto bytes, Bytes(length, what));
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  Result<GgufValue> Value(std::string_view key) {
    INFERD_ASSIGN(GgufType type, Type(key));
    GgufValue value{type, false, 1, {}};
    if (type == GgufType::kArray) {
      INFERD_ASSIGN(value.type, Type(key));
      INFERD_ASSIGN(value.count, Number<std::uint64_t>(key));
      value.array = true;
    }
    if (value.type == GgufType::kArray) {
      return Unimplemented("{}: key {} is an array of arrays", path_, key);
    }
    if (value.type == GgufType::kString) {
      INFERD_TRY(SkipStrings(key, &value));
      return value;
    }
    const auto size = base::CheckedMul(value.count, FixedBytes(value.type));
    if (!size || *size > left()) {
      return InvalidArgument("{}: key {} has {} values, but only {} bytes are left in the file",
                             path_,
                             key,
                             value.count,
                             left());
    }
    INFERD_ASSIGN(value.bytes, Bytes(*size, key));
    return value;
  }

 private:
  Result<GgufType> Type(std::string_view key) {
    INFERD_ASSIGN(const auto number, Number<std::uint32_t>(key));
    if (!IsKnown(number)) {
      return InvalidArgument("{}: key {} has the unknown value type {}", path_, key, number);
    }
    return static_cast<GgufType>(number);
  }

  Result<> SkipStrings(std::string_view key, GgufValue* value) {
    if (value->count > left() / 8) {
      return InvalidArgument("{}: key {} has {} strings, but only {} bytes are left in the file",
                             path_,
                             key,
                             value->count,
                             left());
    }
    const std::uint64_t begin = position_;
    for (std::uint64_t i = 0; i < value->count; ++i) {
      INFERD_TRY(String(bytes_.size(), key));
    }
    value->bytes = bytes_.subspan(begin, position_ - begin);
    return {};
  }

  const std::string& path_;
  std::span<const std::byte> bytes_;
  std::uint64_t position_ = 0;
};

Result<> CheckVersion(Reader* reader, const std::string& path) {
  INFERD_ASSIGN(const auto magic, reader->Bytes(4, "the magic number"));
  const std::string_view text(reinterpret_cast<const char*>(magic.data()), magic.size());
  if (text == "FUGG") {
    return Unimplemented("{}: a big-endian GGUF file; convert it to little-endian", path);
  }
  if (text != "GGUF") {
    return InvalidArgument("{}: not a GGUF file (it does not begin with \"GGUF\")", path);
  }
  INFERD_ASSIGN(const auto version, reader->Number<std::uint32_t>("the version"));
  if (version != 0 && (version & 0xFFFFU) == 0) {
    return Unimplemented("{}: a big-endian GGUF file; convert it to little-endian", path);
  }
  if (version != 2 && version != 3) {
    return Unimplemented("{}: GGUF version {}; versions 2 and 3 are supported", path, version);
  }
  return {};
}

Result<TensorInfo> ReadTensor(Reader* reader, const std::string& path) {
  TensorInfo tensor;
  INFERD_ASSIGN(const auto name, reader->String(kMaxTensorNameBytes, "a tensor name"));
  tensor.name = name;
  const std::string what = fmt::format("{}: tensor {}", path, name);
  if (name.empty()) {
    return InvalidArgument("{}: a tensor with an empty name", path);
  }
  INFERD_ASSIGN(const auto dimensions, reader->Number<std::uint32_t>(name));
  if (dimensions == 0 || dimensions > kMaxDimensions) {
    return InvalidArgument(
        "{} has {} dimensions; 1 to {} are allowed", what, dimensions, kMaxDimensions);
  }
  tensor.shape.resize(dimensions);
  // The file has the innermost dimension first.
  for (std::uint32_t i = dimensions; i-- > 0;) {
    INFERD_ASSIGN(const auto size, reader->Number<std::uint64_t>(name));
    if (size == 0 || size > (std::uint64_t{1} << 31U)) {
      return InvalidArgument("{}: dimension {} is outside 1 to 2^31", what, size);
    }
    tensor.shape[i] = static_cast<std::int64_t>(size);
  }
  INFERD_ASSIGN(const auto type, reader->Number<std::uint32_t>(name));
  INFERD_ASSIGN(tensor.dtype, DTypeOfGgml(type, what));
  INFERD_ASSIGN(tensor.bytes, CheckedTensorBytes(what, tensor.shape, tensor.dtype));
  INFERD_ASSIGN(tensor.offset, reader->Number<std::uint64_t>(name));
  return tensor;
}

// Makes offsets absolute and checks that they are aligned, inside the file and disjoint.
Result<> PlaceTensors(const base::MappedFile& file,
                      std::uint64_t header_bytes,
                      std::uint64_t alignment,
                      std::vector<TensorInfo>* tensors) {
  const auto data_begin = base::CheckedAlignUp(header_bytes, alignment);
  for (TensorInfo& tensor : *tensors) {
    if (tensor.offset % alignment != 0) {
      return InvalidArgument(
          "{}: tensor {} is at offset {}, which is not a multiple of the alignment {}",
          file.path(),
          tensor.name,
          tensor.offset,
          alignment);
    }
    const auto begin = data_begin ? base::CheckedAdd(*data_begin, tensor.offset) : std::nullopt;
    const auto end = begin ? base::CheckedAdd(*begin, tensor.bytes) : std::nullopt;
    if (!end || *end > file.size()) {
      return InvalidArgument(
          "{}: tensor {} needs {} bytes at data offset {}, but the file has {} bytes in all; is it "
          "cut short?",
          file.path(),
          tensor.name,
          tensor.bytes,
          tensor.offset,
          file.size());
    }
    tensor.offset = *begin;
  }
  std::vector<const TensorInfo*> order;
  order.reserve(tensors->size());
  for (const TensorInfo& tensor : *tensors) {
    order.push_back(&tensor);
  }
  std::ranges::sort(order, {}, &TensorInfo::offset);
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset) {
      return InvalidArgument(
          "{}: tensors {} and {} overlap: the first ends at {}, the second begins at {}",
          file.path(),
          order[i - 1]->name,
          order[i]->name,
          order[i - 1]->offset + order[i - 1]->bytes,
          order[i]->offset);
    }
  }
  return {};
}

}  // namespace

Result<GgufFile> GgufFile::Open(const std::string& path) {
  INFERD_ASSIGN(base::MappedFile mapped, base::MappedFile::Open(path));
  GgufFile file(std::move(mapped));
  INFERD_TRY(file.Parse());
  return file;
}

Result<> GgufFile::Parse() {
  Reader reader(file_);
  INFERD_TRY(CheckVersion(&reader, path()));
  INFERD_ASSIGN(const auto num_tensors, reader.Number<std::uint64_t>("the tensor count"));
  INFERD_ASSIGN(const auto num_pairs, reader.Number<std::uint64_t>("the key count"));
  if (num_pairs > reader.left() / kMinPairBytes) {
    return InvalidArgument(
        "{}: {} keys are promised, but only {} bytes are left", path(), num_pairs, reader.left());
  }
  for (std::uint64_t i = 0; i < num_pairs; ++i) {
    INFERD_ASSIGN(const auto key, reader.String(kMaxKeyBytes, "a key"));
    if (key.empty()) {
      return InvalidArgument("{}: key {} of {} is empty", path(), i, num_pairs);
    }
    INFERD_ASSIGN(const auto value, reader.Value(key));
    if (!values_.emplace(key, value).second) {
      return InvalidArgument("{}: key {} occurs twice", path(), key);
    }
  }
  std::uint64_t alignment = kDefaultAlignment;
  if (const GgufValue* value = Find("general.alignment"); value != nullptr) {
    if (value->type != GgufType::kU32 || value->array) {
      return InvalidArgument("{}: general.alignment is not a 32-bit unsigned number", path());
    }
    alignment = Load<std::uint32_t>(value->bytes.data());
    if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
      return InvalidArgument("{}: general.alignment is {}; a power of two up to {} is needed",
                             path(),
                             alignment,
                             kMaxAlignment);
    }
  }
  if (num_tensors > reader.left() / kMinTensorBytes) {
    return InvalidArgument("{}: {} tensors are promised, but only {} bytes are left",
                           path(),
                           num_tensors,
                           reader.left());
  }
  tensors_.reserve(num_tensors);
  for (std::uint64_t i = 0; i < num_tensors; ++i) {
    INFERD_ASSIGN(TensorInfo tensor, ReadTensor(&reader, path()));
    tensors_.push_back(std::move(tensor));
  }
  return PlaceTensors(file_, reader.position(), alignment, &tensors_);
}

}  // namespace inferd::store
