// SPDX-License-Identifier: Apache-2.0
// GGUF files: headers are not trusted; what is read lies within the file.
#include "base/check.h"
#include "store/gguf_config.h"
#include "store/gguf_file.h"
#include "store/tensor_source.h"
#include "target.h"

#include <string>
#include <utility>
#include <vector>

namespace inferd::fuzz {

void Look(std::string_view input) {
  auto file = store::GgufFile::Open(FileWith("model.gguf", input));
  if (!file.ok()) {
    return;
  }
  for (const std::string_view key : file->Keys()) {
    [[maybe_unused]] const auto number = file->Int(key);
    [[maybe_unused]] const auto real = file->Float(key);
    [[maybe_unused]] const auto text = file->String(key);
    [[maybe_unused]] const auto list = file->Ints(key);
    [[maybe_unused]] const auto reals = file->Floats(key);
    [[maybe_unused]] const auto texts = file->Strings(key, 1000);
  }
  std::vector<std::int32_t> ends;
  [[maybe_unused]] const auto tokenizer = store::ReadGgufTokenizer(*file, &ends);
  [[maybe_unused]] const auto generation = store::ReadGgufGeneration(*file);
  std::vector<base::MappedFile> files;
  auto again = store::GgufFile::Open(FileWith("model.gguf", input));
  INFERD_CHECK(again.ok());
  std::vector<store::TensorInfo> tensors = again->TakeTensors();
  files.push_back(again->TakeFile());
  const auto source = store::TensorSource::Make(std::move(files), std::move(tensors));
  if (!source.ok()) {
    return;
  }
  for (const store::TensorInfo& tensor : source->tensors()) {
    INFERD_CHECK(source->Data(tensor).size() == tensor.bytes && tensor.bytes <= input.size());
  }
  [[maybe_unused]] const auto config = store::ParseGgufConfig(*file, *source);
}

}  // namespace inferd::fuzz
