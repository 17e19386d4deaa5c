// SPDX-License-Identifier: Apache-2.0
#include "store/tensor_source.h"

#include "base/check.h"
#include "base/checked_math.h"
#include "base/error.h"

#include <fmt/format.h>

namespace inferd::store {
namespace {

constexpr std::int64_t kMaxDimension = std::int64_t{1} << 31;

}  // namespace

std::int64_t TensorInfo::rows() const {
  if (shape.size() <= 1) {
    return shape.empty() ? 1 : shape[0];
  }
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) {
    rows *= shape[i];
  }
  return rows;
}

std::int64_t TensorInfo::cols() const { return shape.size() <= 1 ? 1 : shape.back(); }

std::uint64_t TensorInfo::row_bytes() const {
  const std::int64_t count = rows();
  return count == 0 ? 0 : bytes / static_cast<std::uint64_t>(count);
}

Result<std::uint64_t> CheckedTensorBytes(std::string_view what,
                                         std::span<const std::int64_t> shape,
                                         DType dtype) {
  const std::string name(DTypeName(dtype));
  std::optional<std::uint64_t> elements = 1;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0 || dimension > kMaxDimension) {
      return InvalidArgument("{}: dimension {} is outside 0 to {}", what, dimension, kMaxDimension);
    }
    elements = base::CheckedMul(*elements, static_cast<std::uint64_t>(dimension));
    if (!elements) {
      return InvalidArgument(
          "{}: shape [{}] has more elements than 64 bits count", what, fmt::join(shape, ", "));
    }
  }
  const std::int64_t block = BlockElements(dtype);
  // A quantised vector would be split inside its blocks when seen as n rows of one value.
  if (block > 1 && (shape.size() < 2 || shape.back() % block != 0)) {
    return InvalidArgument("{}: rows of shape [{}] are not whole {} blocks of {} values",
                           what,
                           fmt::join(shape, ", "),
                           name,
                           block);
  }
  const auto bytes = base::CheckedMul(*elements / static_cast<std::uint64_t>(block),
                                      static_cast<std::uint64_t>(BlockBytes(dtype)));
  if (!bytes) {
    return InvalidArgument("{}: shape [{}] of {} has more bytes than 64 bits count",
                           what,
                           fmt::join(shape, ", "),
                           name);
  }
  return *bytes;
}

Result<TensorSource> TensorSource::Make(std::vector<base::MappedFile> files,
                                        std::vector<TensorInfo> tensors) {
  TensorSource source;
  source.files_ = std::move(files);
  source.tensors_ = std::move(tensors);
  source.index_.reserve(source.tensors_.size());
  for (std::size_t i = 0; i < source.tensors_.size(); ++i) {
    const TensorInfo& tensor = source.tensors_[i];
    if (tensor.file >= source.files_.size()) {
      return Internal(
          "tensor {} names file {} of {}", tensor.name, tensor.file, source.files_.size());
    }
    const base::MappedFile& file = source.files_[tensor.file];
    const auto end = base::CheckedAdd(tensor.offset, tensor.bytes);
    if (tensor.parts == nullptr && (!end || *end > file.size())) {
      return InvalidArgument("{}: tensor {} needs {} bytes at offset {}, but the file has {}",
                             file.path(),
                             tensor.name,
                             tensor.bytes,
                             tensor.offset,
                             file.size());
    }
    const auto [place, fresh] = source.index_.emplace(tensor.name, i);
    if (!fresh) {
      return InvalidArgument("{}: tensor {} occurs a second time; the first is in {}",
                             file.path(),
                             tensor.name,
                             source.FileOf(source.tensors_[place->second]));
    }
  }
  return source;
}

const TensorInfo* TensorSource::Find(std::string_view name) const {
  const auto place = index_.find(name);
  return place == index_.end() ? nullptr : &tensors_[place->second];
}

std::span<const std::byte> TensorSource::Data(const TensorInfo& tensor) const {
  INFERD_CHECK(tensor.file < files_.size() && tensor.parts == nullptr);
  return files_[tensor.file].bytes().subspan(tensor.offset, tensor.bytes);
}

}  // namespace inferd::store
