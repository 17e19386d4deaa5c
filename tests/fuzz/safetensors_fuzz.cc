// SPDX-License-Identifier: Apache-2.0
// Safetensors files: headers are not trusted; what is read lies within the file.
#include "base/check.h"
#include "store/safetensors.h"
#include "store/tensor_source.h"
#include "target.h"

#include <unistd.h>

#include <filesystem>
#include <string>

namespace inferd::fuzz {
namespace {

/// A folder with model.safetensors in it, which is the file in memory.
const std::string& Folder(const std::string& file) {
  static const std::string folder = [&] {
    std::string made = std::filesystem::temp_directory_path().string() + "/fuzz.XXXXXX";
    INFERD_CHECK(mkdtemp(made.data()) != nullptr);
    std::filesystem::create_symlink(file, made + "/model.safetensors");
    return made;
  }();
  return folder;
}

}  // namespace

void Look(std::string_view input) {
  const auto source = store::OpenSafetensors(Folder(FileWith("model.safetensors", input)));
  if (!source.ok()) {
    return;
  }
  std::uint64_t bytes = 0;
  for (const store::TensorInfo& tensor : source->tensors()) {
    INFERD_CHECK(source->Data(tensor).size() == tensor.bytes);
    bytes += tensor.bytes;
  }
  INFERD_CHECK(bytes < input.size());
}

}  // namespace inferd::fuzz
