// SPDX-License-Identifier: Apache-2.0
// OpenModel: from a path to a Model, whichever format lies there.
#include "base/error.h"
#include "base/log.h"
#include "store/gguf_config.h"
#include "store/gguf_file.h"
#include "store/hf_config.h"
#include "store/hf_tokenizer.h"
#include "store/list_folder.h"
#include "store/load_quantisation.h"
#include "store/model.h"
#include "store/quantised.h"
#include "store/safetensors.h"
#include "store/weight_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <regex>

namespace inferd::store {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxConfigBytes = 16U << 20U;

// Keeps the first of equal ids, drops those that are no token.
void TidyEos(spec::ModelSpec* spec) {
  std::vector<std::int32_t> tidy;
  for (const std::int32_t id : spec->eos_ids) {
    if (id < 0 || id >= spec->vocab_size) {
      log::Warning(
          "store", "end id {} is outside the vocabulary of {}; ignored", id, spec->vocab_size);
    } else if (std::ranges::find(tidy, id) == tidy.end()) {
      tidy.push_back(id);
    }
  }
  spec->eos_ids = std::move(tidy);
}

// How the files store most of the weights, in vLLM's words; empty when not quantised.
struct Stored {
  FileFormat format;
  std::string_view quantization;
};

std::string_view NameOf(const std::optional<QuantConfig>& config) {
  if (!config) {
    return "";
  }
  switch (config->method) {
    case QuantConfig::Method::kAwq:
      return "awq";
    case QuantConfig::Method::kGptq:
      return "gptq";
    case QuantConfig::Method::kFp8:
      return "fp8";
    case QuantConfig::Method::kCompressed:
      break;
  }
  return "compressed-tensors";
}

Result<> Finish(const Family& family,
                const Stored& stored,
                const Quantization& quantization,
                Model* model) {
  spec::ModelSpec& spec = model->spec;
  spec.name = fs::path(model->path).filename().string();
  TidyEos(&spec);
  INFERD_TRY(spec::Validate(spec));
  INFERD_ASSIGN(model->weights, MapWeights(spec, family, stored.format, model->tensors));
  INFERD_TRY(
      ApplyQuantization(quantization, stored.quantization, spec, model->weights, &model->tensors));
  model->cut = CutOf(spec, model->weights);
  spec.weight_dtype = MainDType(spec, model->weights);
  return {};
}

Result<Model> OpenGguf(const std::string& path, const Quantization& quantization) {
  INFERD_ASSIGN(std::vector<GgufFile> parts, OpenGgufParts(path));
  Model model;
  model.path = path;
  // The first part holds the keys; the mappings stay where they are when they move into the source.
  std::vector<TensorInfo> tensors;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (TensorInfo& tensor : parts[i].TakeTensors()) {
      tensor.file = static_cast<std::uint32_t>(i);
      tensors.push_back(std::move(tensor));
    }
  }
  INFERD_ASSIGN(GgufFile keys, GgufFile::Open(parts.front().path()));
  std::vector<base::MappedFile> files;
  for (GgufFile& part : parts) {
    files.push_back(part.TakeFile());
  }
  INFERD_ASSIGN(model.tensors, TensorSource::Make(std::move(files), std::move(tensors)));
  INFERD_ASSIGN(GgufModelConfig config, ParseGgufConfig(keys, model.tensors));
  model.spec = std::move(config.spec);
  INFERD_ASSIGN(model.tokenizer, ReadGgufTokenizer(keys, &model.spec.eos_ids));
  INFERD_ASSIGN(model.generation, ReadGgufGeneration(keys));
  INFERD_TRY(Finish(*config.family, {FileFormat::kGguf, "gguf"}, quantization, &model));
  return model;
}

// The reference multiplies in the type of the embedding, so its scale is rounded to that type.
double RoundedTo(DType dtype, double value) {
  if (dtype == DType::kBF16) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) & 0xFFFF0000U;
    return std::bit_cast<float>(rounded);
  }
  if (dtype == DType::kF16) {
    const int exponent = std::ilogb(value);
    return std::ldexp(std::nearbyint(std::ldexp(value, 10 - exponent)), exponent - 10);
  }
  return static_cast<float>(value);
}

Result<Model> OpenHf(const std::string& folder, const Quantization& quantization) {
  Model model;
  model.path = folder;
  const std::string path = (fs::path(folder) / "config.json").string();
  INFERD_ASSIGN(const std::string text, base::ReadFile(path, kMaxConfigBytes));
  INFERD_ASSIGN(HfModelConfig config, ParseHfConfig(path, text));
  model.spec = std::move(config.spec);
  INFERD_ASSIGN(model.tensors, OpenSafetensors(folder, config.quant));
  INFERD_ASSIGN(model.generation, ReadHfGeneration(folder, &model.spec.eos_ids));
  INFERD_ASSIGN(model.tokenizer, ReadHfTokenizer(folder, &model.spec.eos_ids));
  model.fp8_kv = config.quant && config.quant->fp8_kv;
  const Stored stored{FileFormat::kSafetensors, NameOf(config.quant)};
  INFERD_TRY(Finish(*config.family, stored, quantization, &model));
  if (model.spec.embedding_scale != 1) {
    const DType dtype = model.weights.Find(Slot::kEmbedding)->dtype();
    model.spec.embedding_scale = RoundedTo(dtype, model.spec.embedding_scale);
  }
  return model;
}

// GGUF files of a folder, one per model: the first part stands for a split one. Projectors of
// vision models are left out.
std::vector<std::string> GgufModelsIn(const fs::path& folder) {
  static const std::regex kLaterPart(R"(.*-(\d{5})-of-\d{5}\.gguf)");
  std::vector<std::string> models;
  std::vector<std::string> parts;
  for (const fs::path& path : ListFolder(folder)) {
    const std::string name = path.filename().string();
    std::smatch match;
    if (!name.ends_with(".gguf") || name.starts_with("mmproj")) {
      continue;
    }
    if (std::regex_match(name, match, kLaterPart) && match[1] != "00001") {
      parts.push_back(name);
    } else {
      models.push_back(name);
    }
  }
  // Only later parts: opening one of them says which are absent.
  std::ranges::sort(parts);
  if (models.empty() && !parts.empty()) {
    models.push_back(parts.front());
  }
  std::ranges::sort(models);
  return models;
}

Result<Model> OpenFolder(const std::string& folder, const Quantization& quantization) {
  std::error_code ignored;
  const std::vector<std::string> gguf = GgufModelsIn(folder);
  if (fs::exists(fs::path(folder) / "config.json", ignored)) {
    bool safetensors = false;
    for (const fs::path& path : ListFolder(folder)) {
      const std::string name = path.filename().string();
      safetensors = safetensors || name.ends_with(".safetensors") ||
                    name.ends_with(".safetensors.index.json");
    }
    if (safetensors || gguf.empty()) {
      return OpenHf(folder, quantization);
    }
  }
  if (gguf.empty()) {
    return NotFound("{} holds no model: neither config.json with safetensors nor a .gguf file",
                    folder);
  }
  if (gguf.size() > 1) {
    return InvalidArgument("{} holds {} GGUF models; name one of {}",
                           folder,
                           gguf.size(),
                           fmt::format("{}", fmt::join(gguf, ", ")));
  }
  return OpenGguf((fs::path(folder) / gguf.front()).string(), quantization);
}

Result<Model> Open(const std::string& path, const Quantization& quantization) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return NotFound("{}: no such file or folder", path);
  }
  if (fs::is_directory(status)) {
    return OpenFolder(path, quantization);
  }
  if (path.ends_with(".safetensors") || path.ends_with(".json")) {
    return OpenFolder(fs::path(path).parent_path().string(), quantization);
  }
  return OpenGguf(path, quantization);
}

}  // namespace

std::int64_t LoadedBytes(const Model& model) {
  std::uint64_t bytes = 0;
  for (const TensorInfo* const tensor : model.weights.Tensors()) {
    bytes += StoredBytes(*tensor);
  }
  return static_cast<std::int64_t>(bytes);
}

Result<Model> OpenModel(const std::string& path, std::string_view quantization, bool keep_fp8) {
  return Open(path, {quantization, keep_fp8});
}

}  // namespace inferd::store
