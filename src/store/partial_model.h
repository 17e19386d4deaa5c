// SPDX-License-Identifier: Apache-2.0
// A model of which a host needs only some ranks' slices: files of full length with holes, filled
// from the object store as ranks ask. The ranks of a host share them, so no byte comes twice.
#pragma once

#include "inferd/result.h"
#include "store/model.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::store {

/// Bytes [begin, end) of TensorSource::files()[file].
struct FileRange {
  std::uint32_t file = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
/// Of a tensor as it is stored: not one with parts.
FileRange RangeOf(const TensorInfo& tensor);

/// What the leader calls a model that every host is to find by itself: "s3://bucket/prefix#VERSION"
/// of a path that Fetch has returned for an s3:// name, with the version loaded; other paths as
/// they are.
std::string SharedName(std::string_view name, const std::string& path);

/// Not thread-safe; processes may share the files.
class PartialModel {
 public:
  /// Opens a path, or a SharedName: from the cache if this host has the version whole, else from
  /// the store, of which configs, tokenizer and headers are read. Aborted if the store has another
  /// version by now. What is in the cache is held until the process ends. `keep_fp8` as OpenModel
  /// takes it. `alive` is called from time to time; false cancels.
  static Result<PartialModel> Open(const std::string& shared_name,
                                   std::string_view quantization,
                                   std::function<bool()> alive,
                                   bool keep_fp8 = false);

  PartialModel(PartialModel&&) noexcept;
  PartialModel& operator=(PartialModel&&) noexcept;
  ~PartialModel();

  Model& model() { return model_; }
  /// Everything is there already.
  bool whole() const { return files_ == nullptr; }
  /// Reads what is not there yet. Without a checksum: stores have them of whole objects only.
  Result<> Provide(const std::vector<FileRange>& ranges);

 private:
  struct Files;
  PartialModel();

  Model model_;
  std::unique_ptr<Files> files_;  // null: whole
};

}  // namespace inferd::store
