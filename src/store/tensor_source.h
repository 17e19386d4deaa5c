// SPDX-License-Identifier: Apache-2.0
// TensorSource: the tensors of a model's files, by name, with their bytes mapped read-only. The
// GGUF and safetensors readers fill it; nothing above knows which format the bytes came from.
#pragma once

#include "base/dtype.h"
#include "base/file.h"
#include "inferd/result.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace inferd::store {

struct QuantisedParts;

/// One stored tensor. Its byte range has been checked against its shape, its type and the size of
/// its file.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // row-major, outermost first: [out, in]
  std::uint32_t file = 0;           // index into TensorSource::files()
  std::uint64_t offset = 0;         // of the first byte, from the start of the file
  std::uint64_t bytes = 0;
  /// A quantised layer of several stored tensors (store/quantised.h): its rows are made by
  /// MakeRows, file and offset are those of its largest part. Else null.
  std::shared_ptr<const QuantisedParts> parts;

  /// The tensor as a matrix: all dimensions but the last merged to rows. A vector is [n, 1], a
  /// scalar [1, 1].
  std::int64_t rows() const;
  std::int64_t cols() const;
  std::uint64_t row_bytes() const;
};

/// Bytes of a tensor of this shape and type; refuses dimensions below 0 or above 2^31, rows that
/// are not whole blocks, and products that do not fit. `what` names the file and the tensor in the
/// message.
Result<std::uint64_t> CheckedTensorBytes(std::string_view what,
                                         std::span<const std::int64_t> shape,
                                         DType dtype);

/// Thread-safe; immutable once the model is open. Moving it leaves TensorInfo pointers and data
/// spans valid.
class TensorSource {
 public:
  TensorSource() = default;
  /// Refuses a name that occurs twice, a file index that does not exist, and a range that leaves
  /// its file.
  static Result<TensorSource> Make(std::vector<base::MappedFile> files,
                                   std::vector<TensorInfo> tensors);

  /// Null if there is no such tensor.
  const TensorInfo* Find(std::string_view name) const;
  /// In the order of the files.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  /// Precondition: tensor.parts is null.
  std::span<const std::byte> Data(const TensorInfo& tensor) const;
  std::span<const base::MappedFile> files() const { return files_; }
  const std::string& FileOf(const TensorInfo& tensor) const { return files_[tensor.file].path(); }
  /// Another form of one of tensors(), under its name and at its address. Only while the model is
  /// being opened.
  void Replace(const TensorInfo& tensor, TensorInfo with) {
    tensors_[static_cast<std::size_t>(&tensor - tensors_.data())] = std::move(with);
  }

 private:
  std::vector<base::MappedFile> files_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, std::size_t> index_;
};

}  // namespace inferd::store
