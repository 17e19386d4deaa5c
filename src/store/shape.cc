// SPDX-License-Identifier: Apache-2.0
#include "store/shape.h"

#include "base/error.h"
#include "base/file.h"
#include "spec/memory_ledger.h"
#include "store/families.h"
#include "store/hf_config.h"
#include "store/json_util.h"
#include "store/model.h"
#include "store/resolve.h"
#include "store/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <vector>

namespace inferd::store {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxConfigBytes = 16U << 20U;

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(
      lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

Result<ModelShape> FromConfig(const std::string& what,
                              std::string_view text,
                              const Family** family = nullptr) {
  INFERD_ASSIGN(HfModelConfig config, ParseHfConfig(what, text));
  if (family != nullptr) {
    *family = config.family;
  }
  INFERD_ASSIGN(const Json json, ParseJsonObject(what, text));
  const JsonFields fields(what, json);
  INFERD_ASSIGN(std::string dtype, fields.StringOr("torch_dtype", ""));
  if (dtype.empty()) {
    INFERD_ASSIGN(dtype, fields.StringOr("dtype", "bfloat16"));
  }
  ModelShape shape;
  shape.spec = std::move(config.spec);
  shape.fp8_kv = config.quant && config.quant->fp8_kv;
  shape.bytes_per_weight = dtype == "float32" ? 4 : 2;
  shape.spec.weight_dtype = dtype == "float32"   ? DType::kF32
                            : dtype == "float16" ? DType::kF16
                                                 : DType::kBF16;
  shape.source = what;
  INFERD_TRY(spec::Validate(shape.spec));
  return shape;
}

Result<ModelShape> FromFolder(const fs::path& folder) {
  const std::string path = (folder / "config.json").string();
  INFERD_ASSIGN(const std::string text, base::ReadFile(path, kMaxConfigBytes));
  const Family* family = nullptr;
  INFERD_ASSIGN(ModelShape shape, FromConfig(path, text, &family));
  shape.spec.name = folder.filename().string();
  if (const auto tensors = OpenSafetensors(folder.string()); tensors.ok()) {
    std::int64_t bytes = 0;
    for (const TensorInfo& tensor : tensors->tensors()) {
      const bool loaded = !IsGuessingLayer(*family, shape.spec.num_layers, tensor.name);
      bytes += loaded ? static_cast<std::int64_t>(tensor.bytes) : 0;
    }
    shape.bytes_per_weight = spec::BytesPerWeight(shape.spec, bytes);
  }
  return shape;
}

Result<ModelShape> FromModel(const std::string& path) {
  INFERD_ASSIGN(const Model model, OpenModel(path));
  ModelShape shape;
  shape.spec = model.spec;
  shape.cut = model.cut;
  shape.fp8_kv = model.fp8_kv;
  shape.bytes_per_weight = spec::BytesPerWeight(model.spec, LoadedBytes(model));
  shape.source = path;
  return shape;
}

Result<ModelShape> FromPath(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    fs::path folder = path;
    if (!folder.has_filename()) {
      folder = folder.parent_path();
    }
    return fs::exists(folder / "config.json", ignored) ? FromFolder(folder) : FromModel(path);
  }
  if (path.ends_with(".json")) {
    INFERD_ASSIGN(const std::string text, base::ReadFile(path, kMaxConfigBytes));
    INFERD_ASSIGN(ModelShape shape, FromConfig(path, text));
    shape.spec.name = fs::absolute(path, ignored).parent_path().filename().string();
    return shape;
  }
  return FromModel(path);
}

/// Null-like (empty name) when no built-in shape is called that.
Result<ModelShape> FromBuiltIn(const std::string& wanted, std::vector<std::string>* names) {
  INFERD_ASSIGN(const Json shapes, ParseJsonObject("configs/model_shapes.json", BuiltInShapes()));
  for (const auto& [name, entry] : shapes.items()) {
    bool called = name == wanted;
    for (const Json& alias : entry["aliases"]) {
      called = called || Lower(alias.get_ref<const std::string&>()) == wanted;
    }
    if (called) {
      INFERD_ASSIGN(ModelShape shape, FromConfig("built-in shape " + name, entry["config"].dump()));
      shape.spec.name = name;
      shape.source = "built in";
      return shape;
    }
    names->push_back(name);
  }
  return NotFound("");
}

}  // namespace

Result<ModelShape> ReadShape(const std::string& name_or_path) {
  if (name_or_path.empty()) {
    return InvalidArgument("no model given; for example: --model llama-70b, or --model PATH");
  }
  std::error_code ignored;
  if (fs::exists(name_or_path, ignored)) {
    return FromPath(name_or_path);
  }
  std::vector<std::string> names;
  Result<ModelShape> shape = FromBuiltIn(Lower(name_or_path), &names);
  if (shape.ok() || shape.error().code() != Code::kNotFound) {
    return shape;
  }
  if (const auto path = ResolveModel(name_or_path); path.ok()) {
    INFERD_ASSIGN(ModelShape cached, FromPath(*path));
    cached.spec.name = name_or_path;
    return cached;
  }
  return NotFound(
      "{} is neither a file or folder, nor a model in the cache, nor a shape that is built in "
      "({}); "
      "give a config.json",
      name_or_path,
      fmt::join(names, ", "));
}

}  // namespace inferd::store
