// SPDX-License-Identifier: Apache-2.0
// Reading quantization_config, and folding the parts of each layer into one tensor.
#include "store/quantised.h"

#include "base/error.h"
#include "base/float_bits.h"
#include "store/quantised_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

namespace inferd::store {
namespace {

using Layout = QuantisedParts::Layout;

constexpr std::int64_t kScaleBlock = 128;  // rows and columns of an FP8 block

// Scales of activations: these are quantised with scales found as they come, or not at all.
constexpr std::array<std::string_view, 4> kUnused = {
    ".input_scale", ".output_scale", ".q_scale", ".weight_shape"};

// Of Hugging Face's FP8-KV checkpoints and llm-compressor; as modules of vLLM; of ModelOpt; of
// older tools, which knew them as scales of the projections' outputs; one for both.
constexpr std::array<KvScaleNames, 6> kKvScales = {{{"k_scale", "v_scale"},
                                                    {"attn.k_scale", "attn.v_scale"},
                                                    {"k_proj.k_scale", "v_proj.v_scale"},
                                                    {"qkv_proj.k_scale", "qkv_proj.v_scale"},
                                                    {"k_proj.output_scale", "v_proj.output_scale"},
                                                    {"kv_scale", "kv_scale"}}};

bool IsKvScale(std::string_view name) {
  constexpr std::string_view kAttention = ".self_attn.";
  const std::size_t at = name.rfind(kAttention);
  if (at == std::string_view::npos) {
    return false;
  }
  const std::string_view rest = name.substr(at + kAttention.size());
  return std::ranges::any_of(
      kKvScales, [&](const KvScaleNames& known) { return rest == known.k || rest == known.v; });
}

// The stored names of the parts of one layer, after "X.".
constexpr std::array<std::string_view, 9> kParts = {"qweight",
                                                    "qzeros",
                                                    "scales",
                                                    "g_idx",
                                                    "weight_packed",
                                                    "weight_scale",
                                                    "weight_scale_inv",
                                                    "weight_zero_point",
                                                    "weight_g_idx"};

Error Unsupported(const JsonFields& config, std::string_view what) {
  return Unimplemented(
      "{}: {} is not supported; AWQ (gemm), GPTQ (2, 4 and 8 bits), FP8 and compressed-tensors "
      "(pack-quantized, int-quantized, float-quantized, dense) are, and GGUF files",
      config.what(),
      what);
}

Result<QuantConfig> ReadPacked(const JsonFields& fields, QuantConfig::Method method) {
  QuantConfig config;
  config.method = method;
  INFERD_ASSIGN(const std::int64_t bits, fields.IntOr("bits", fields.Get("w_bit") ? 0 : 4));
  INFERD_ASSIGN(const std::int64_t w_bit, fields.IntOr("w_bit", bits));
  INFERD_ASSIGN(const std::int64_t q_group, fields.IntOr("q_group_size", 128));
  INFERD_ASSIGN(config.group_size, fields.IntOr("group_size", q_group));
  config.bits = static_cast<int>(bits != 0 ? bits : w_bit);
  if (config.group_size < -1 || config.group_size == 0) {
    return InvalidArgument("{}: group_size is {}; it must be above 0, or -1 for all inputs",
                           fields.what(),
                           config.group_size);
  }
  if (method == QuantConfig::Method::kAwq) {
    INFERD_ASSIGN(const std::string version, fields.StringOr("version", "gemm"));
    if (config.bits != 4 || (version != "gemm" && version != "GEMM")) {
      return Unsupported(fields, fmt::format("AWQ of {} bits, version {}", config.bits, version));
    }
    return config;
  }
  INFERD_ASSIGN(const std::string format, fields.StringOr("checkpoint_format", "gptq"));
  if (format != "gptq" && format != "gptq_v2") {
    return Unsupported(fields, fmt::format("GPTQ with checkpoint_format {}", format));
  }
  if (config.bits != 2 && config.bits != 4 && config.bits != 8) {
    return Unsupported(fields, fmt::format("GPTQ of {} bits", config.bits));
  }
  config.zero_plus_one = format == "gptq";
  return config;
}

// The type that inputs are rounded to, when all groups do so in 8 bits with a scale per token that
// is found as they come. Nothing for other schemes: their inputs stay floats.
Result<std::optional<DType>> ReadTokenActivations(const JsonFields& config) {
  const Json* groups = config.Get("config_groups");
  std::optional<DType> found;
  if (groups == nullptr || !groups->is_object()) {
    return found;
  }
  for (const auto& [name, group] : groups->items()) {
    const Json* inputs =
        group.is_object() ? JsonFields(name, group).Get("input_activations") : nullptr;
    if (inputs == nullptr || !inputs->is_object()) {
      return std::optional<DType>();
    }
    const JsonFields scheme(config.what() + ": " + name, *inputs);
    INFERD_ASSIGN(const std::int64_t bits, scheme.IntOr("num_bits", 8));
    INFERD_ASSIGN(const std::string type, scheme.StringOr("type", "int"));
    INFERD_ASSIGN(const std::string strategy, scheme.StringOr("strategy", "tensor"));
    INFERD_ASSIGN(const bool dynamic, scheme.BoolOr("dynamic", false));
    INFERD_ASSIGN(const bool symmetric, scheme.BoolOr("symmetric", true));
    const DType rounded = type == "float" ? DType::kF8E4M3 : DType::kI8;
    if (bits != 8 || strategy != "token" || !dynamic || !symmetric ||
        found.value_or(rounded) != rounded) {
      return std::optional<DType>();
    }
    found = rounded;
  }
  return found;
}

// Tensors by layer: the layer's name, then what follows it.
using Layers = std::map<std::string, std::map<std::string, TensorInfo>>;

class Folder {
 public:
  Folder(const QuantConfig& config, const std::vector<base::MappedFile>& files)
      : config_(config), files_(files) {}

  Result<TensorInfo> Fold(const std::string& layer, std::map<std::string, TensorInfo> stored) {
    layer_ = layer;
    file_ = stored.begin()->second.file;
    stored_ = std::move(stored);
    auto parts = std::make_shared<QuantisedParts>();
    const bool packed = stored_.contains("qweight");
    Result<> filled = packed                              ? FillPacked(parts.get())
                      : stored_.contains("weight_packed") ? FillCompressed(parts.get())
                                                          : FillScaled(parts.get());
    if (!filled.ok()) {
      return filled.error();
    }
    for (const auto& [part, tensor] : stored_) {
      if (part != "bias") {
        return InvalidArgument("{}: tensor {} does not belong to a layer quantised like {}",
                               FileOf(tensor),
                               tensor.name,
                               layer_);
      }
    }
    TensorInfo folded = parts->weight;
    folded.name = layer + ".weight";
    folded.shape = {parts->rows, parts->cols};
    folded.dtype = parts->MadeType();
    INFERD_ASSIGN(folded.bytes, CheckedTensorBytes(Name(folded), folded.shape, folded.dtype));
    folded.parts = std::move(parts);
    return folded;
  }

 private:
  const std::string& FileOf(const TensorInfo& tensor) const { return files_[tensor.file].path(); }
  std::string Name(const TensorInfo& tensor) const {
    return fmt::format("{}: tensor {}", FileOf(tensor), tensor.name);
  }

  Result<TensorInfo> Take(const std::string& part) {
    const auto place = stored_.find(part);
    if (place == stored_.end()) {
      return InvalidArgument("{}: tensor {}.{} is absent; the layer's other parts are there",
                             files_[file_].path(),
                             layer_,
                             part);
    }
    TensorInfo tensor = std::move(place->second);
    stored_.erase(place);
    return tensor;
  }

  // Below 2^-14 an F16 has fewer than its 11 bits.
  bool HasSmall(const TensorInfo& scales) const {
    const auto bytes = files_[scales.file].bytes().subspan(scales.offset, scales.bytes);
    const auto size = static_cast<std::size_t>(BlockBytes(scales.dtype));
    for (std::size_t at = 0; at < bytes.size(); at += size) {
      const float scale = PlainToFloat(scales.dtype, bytes.data() + at);
      if (scale != 0 && std::abs(scale) < 0x1p-14F) {
        return true;
      }
    }
    return false;
  }

  Result<> Expect(const TensorInfo& tensor,
                  std::int64_t rows,
                  std::int64_t cols,
                  std::initializer_list<DType> types) const {
    if (tensor.rows() != rows || tensor.cols() != cols) {
      return InvalidArgument("{} has shape [{}], but the layer's other parts ask for [{}, {}]",
                             Name(tensor),
                             fmt::join(tensor.shape, ", "),
                             rows,
                             cols);
    }
    if (std::find(types.begin(), types.end(), tensor.dtype) == types.end()) {
      return InvalidArgument(
          "{} is of type {}, which it cannot be", Name(tensor), DTypeName(tensor.dtype));
    }
    return {};
  }

  // Columns per scale; `groups` scales must cover the columns.
  Result<std::int64_t> GroupSize(const TensorInfo& scales,
                                 std::int64_t groups,
                                 std::int64_t cols) const {
    const std::int64_t size = config_.group_size == -1 ? cols : config_.group_size;
    if (groups <= 0 || size <= 0 || (cols + size - 1) / size != groups) {
      return InvalidArgument(
          "{} has {} groups, but {} inputs in groups of {} (group_size of the "
          "config) are {}",
          Name(scales),
          groups,
          cols,
          size,
          (cols + size - 1) / size);
    }
    return size;
  }

  // AWQ and GPTQ: qweight, qzeros, scales [groups, out], g_idx.
  Result<> FillPacked(QuantisedParts* parts) {
    INFERD_ASSIGN(parts->weight, Take("qweight"));
    INFERD_ASSIGN(parts->scales, Take("scales"));
    INFERD_ASSIGN(parts->zeros.emplace(), Take("qzeros"));
    const bool awq = config_.method == QuantConfig::Method::kAwq;
    if (!awq && config_.method != QuantConfig::Method::kGptq) {
      return InvalidArgument("{} belongs to AWQ or GPTQ, but the config names another method",
                             Name(parts->weight));
    }
    const std::int64_t pack = 32 / config_.bits;
    parts->layout = awq ? Layout::kAwq : Layout::kGptq;
    parts->bits = config_.bits;
    parts->zero_plus_one = config_.zero_plus_one;
    parts->rows = awq ? parts->weight.cols() * pack : parts->weight.cols();
    parts->cols = awq ? parts->weight.rows() : parts->weight.rows() * pack;
    INFERD_TRY(Expect(parts->weight, parts->weight.rows(), parts->weight.cols(), {DType::kI32}));
    const std::int64_t groups = parts->scales.rows();
    INFERD_TRY(
        Expect(parts->scales, groups, parts->rows, {DType::kF16, DType::kBF16, DType::kF32}));
    if (parts->rows % pack != 0) {
      return InvalidArgument("{} has {} outputs, no multiple of the {} zeros of a word",
                             Name(parts->weight),
                             parts->rows,
                             pack);
    }
    INFERD_TRY(Expect(*parts->zeros, groups, parts->rows / pack, {DType::kI32}));
    INFERD_ASSIGN(parts->group_size, GroupSize(parts->scales, groups, parts->cols));
    if (stored_.contains("g_idx")) {
      INFERD_ASSIGN(TensorInfo index, Take("g_idx"));
      INFERD_TRY(Expect(index, parts->cols, 1, {DType::kI32}));
      INFERD_TRY(TakeGroups(index, groups, parts));
    }
    return {};
  }

  // The group of each column; kept only if it is not the plain order.
  Result<> TakeGroups(const TensorInfo& index, std::int64_t groups, QuantisedParts* parts) const {
    bool plain = true;
    const auto bytes = files_[index.file].bytes().subspan(index.offset, index.bytes);
    for (std::int64_t j = 0; j < parts->cols; ++j) {
      const std::int32_t group = LoadWord(bytes, j);
      if (group < 0 || group >= groups) {
        return InvalidArgument(
            "{} puts input {} into group {}; there are {}", Name(index), j, group, groups);
      }
      plain = plain && group == j / parts->group_size;
    }
    if (!plain) {
      parts->group_index = index;
    }
    return {};
  }

  // compressed-tensors, pack-quantized: weight_packed [out, in / pack], weight_scale [out, groups].
  Result<> FillCompressed(QuantisedParts* parts) {
    INFERD_ASSIGN(parts->weight, Take("weight_packed"));
    INFERD_ASSIGN(parts->scales, Take("weight_scale"));
    parts->layout = Layout::kRows;
    parts->bits = config_.bits;
    if (parts->bits == 0) {
      return InvalidArgument("{} is packed, but the config does not say of how many bits",
                             Name(parts->weight));
    }
    const std::int64_t pack = 32 / parts->bits;
    parts->rows = parts->weight.rows();
    parts->cols = parts->weight.cols() * pack;
    INFERD_TRY(Expect(parts->weight, parts->rows, parts->weight.cols(), {DType::kI32}));
    const std::int64_t groups = parts->scales.cols();
    INFERD_TRY(
        Expect(parts->scales, parts->rows, groups, {DType::kF16, DType::kBF16, DType::kF32}));
    INFERD_ASSIGN(parts->group_size, GroupSize(parts->scales, groups, parts->cols));
    if (stored_.contains("weight_zero_point")) {
      INFERD_ASSIGN(parts->zeros.emplace(), Take("weight_zero_point"));
      INFERD_TRY(Expect(*parts->zeros, (parts->rows + pack - 1) / pack, groups, {DType::kI32}));
    }
    if (stored_.contains("weight_g_idx")) {
      INFERD_ASSIGN(TensorInfo index, Take("weight_g_idx"));
      INFERD_TRY(Expect(index, parts->cols, 1, {DType::kI32}));
      INFERD_TRY(TakeGroups(index, groups, parts));
    }
    return {};
  }

  // FP8 or int8 values with scales: one, one per row, groups of columns, or blocks of 128 x 128.
  Result<> FillScaled(QuantisedParts* parts) {
    INFERD_ASSIGN(parts->weight, Take("weight"));
    const bool inverse = stored_.contains("weight_scale_inv");
    INFERD_ASSIGN(parts->scales, Take(inverse ? "weight_scale_inv" : "weight_scale"));
    parts->layout = Layout::kScaled;
    parts->rows = parts->weight.rows();
    parts->cols = parts->weight.cols();
    INFERD_TRY(Expect(parts->weight, parts->rows, parts->cols, {DType::kF8E4M3, DType::kI8}));
    const std::int64_t scale_rows = parts->scales.rows();
    const std::int64_t groups = parts->scales.cols();
    INFERD_TRY(Expect(parts->scales, scale_rows, groups, {DType::kF32, DType::kBF16, DType::kF16}));
    const auto blocks = [](std::int64_t n) { return (n + kScaleBlock - 1) / kScaleBlock; };
    const bool one = scale_rows == 1 && groups == 1;
    const bool by_row = scale_rows == parts->rows && groups > 0 && parts->cols % groups == 0;
    const bool by_block = scale_rows == blocks(parts->rows) && groups == blocks(parts->cols);
    if (!one && !by_row && !by_block) {
      return InvalidArgument(
          "{} has shape [{}], which is neither one scale, nor one per output, nor one per block of "
          "{} x {} of [{}, {}]",
          Name(parts->scales),
          fmt::join(parts->scales.shape, ", "),
          kScaleBlock,
          kScaleBlock,
          parts->rows,
          parts->cols);
    }
    parts->small_scales = HasSmall(parts->scales);
    parts->scale_rows = one ? parts->rows : by_row ? 1 : kScaleBlock;
    parts->group_size = one ? parts->cols : by_row ? parts->cols / groups : kScaleBlock;
    parts->by_token =
        config_.token_activations == parts->weight.dtype && (one || groups == 1) && (one || by_row);
    return {};
  }

  const QuantConfig& config_;
  const std::vector<base::MappedFile>& files_;
  std::string layer_;
  std::uint32_t file_ = 0;  // of the layer's first part
  std::map<std::string, TensorInfo> stored_;
};

// Other schemes (integers, an algorithm by name) say nothing about pages of FP8.
Result<bool> SaysFp8Kv(const JsonFields& fields) {
  const Json* value = fields.Get("kv_cache_scheme");
  if (value == nullptr || !value->is_object()) {
    return false;
  }
  const JsonFields scheme(fields.what() + ": kv_cache_scheme", *value);
  INFERD_ASSIGN(const std::int64_t bits, scheme.IntOr("num_bits", 8));
  INFERD_ASSIGN(const std::string type, scheme.StringOr("type", "float"));
  return bits == 8 && type == "float";
}

Result<QuantConfig> ReadWeightConfig(const JsonFields& fields) {
  INFERD_ASSIGN(const std::string method, fields.StringOr("quant_method", ""));
  if (method == "awq" || method == "gptq") {
    return ReadPacked(fields,
                      method == "awq" ? QuantConfig::Method::kAwq : QuantConfig::Method::kGptq);
  }
  QuantConfig result;
  if (method == "fp8" || method == "fbgemm_fp8") {
    INFERD_ASSIGN(const auto block, fields.Ints("weight_block_size"));
    if (!block.empty() && block != std::vector<std::int64_t>{kScaleBlock, kScaleBlock}) {
      return Unsupported(fields, fmt::format("weight_block_size [{}]", fmt::join(block, ", ")));
    }
    return result;
  }
  if (method != "compressed-tensors") {
    return Unsupported(fields, "quant_method " + (method.empty() ? "(none)" : method));
  }
  result.method = QuantConfig::Method::kCompressed;
  INFERD_ASSIGN(const std::string format, fields.StringOr("format", ""));
  if (format == "float-quantized" || format == "int-quantized" || format == "naive-quantized" ||
      format == "dense") {
    INFERD_ASSIGN(result.token_activations, ReadTokenActivations(fields));
    return result;
  }
  if (format != "pack-quantized") {
    return Unsupported(fields, "compressed-tensors format " + format);
  }
  const Json* groups = fields.Get("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty()) {
    return InvalidArgument("{}: config_groups is absent", fields.what());
  }
  for (const auto& [name, group] : groups->items()) {
    const Json* weights = group.is_object() ? JsonFields(name, group).Get("weights") : nullptr;
    if (weights == nullptr || !weights->is_object()) {
      return InvalidArgument("{}: {} has no weights", fields.what(), name);
    }
    const JsonFields scheme(fields.what() + ": " + name, *weights);
    INFERD_ASSIGN(const std::int64_t bits, scheme.IntOr("num_bits", 4));
    INFERD_ASSIGN(const std::int64_t size, scheme.IntOr("group_size", -1));
    if ((bits != 4 && bits != 8) || size == 0 || size < -1) {
      return Unsupported(scheme, fmt::format("{} bits in groups of {}", bits, size));
    }
    if (result.bits != 0 && (result.bits != bits || result.group_size != size)) {
      return Unsupported(fields, "config_groups of different widths");
    }
    result.bits = static_cast<int>(bits);
    result.group_size = size;
  }
  return result;
}

}  // namespace

Result<std::optional<QuantConfig>> ReadQuantConfig(const JsonFields& config) {
  const Json* value = config.Get("quantization_config");
  value = value != nullptr ? value : config.Get("compression_config");
  if (value == nullptr) {
    return std::optional<QuantConfig>();
  }
  const JsonFields fields(config.what() + ": quantization_config", *value);
  if (!value->is_object()) {
    return InvalidArgument("{} is not an object", fields.what());
  }
  INFERD_ASSIGN(QuantConfig result, ReadWeightConfig(fields));
  INFERD_ASSIGN(result.fp8_kv, SaysFp8Kv(fields));
  return std::optional(result);
}

std::span<const KvScaleNames> KnownKvScales() { return kKvScales; }

Result<> FoldQuantised(const QuantConfig& config,
                       const std::vector<base::MappedFile>& files,
                       std::vector<TensorInfo>* tensors) {
  Layers layers;
  std::vector<TensorInfo> rest;
  for (TensorInfo& tensor : *tensors) {
    const auto ends = [&](std::string_view end) { return tensor.name.ends_with(end); };
    if (IsKvScale(tensor.name)) {
      rest.push_back(std::move(tensor));
      continue;
    }
    if (std::any_of(kUnused.begin(), kUnused.end(), ends)) {
      continue;
    }
    const std::size_t dot = tensor.name.rfind('.');
    const std::string part = dot == std::string::npos ? "" : tensor.name.substr(dot + 1);
    const bool values =
        part == "weight" && (tensor.dtype == DType::kF8E4M3 || tensor.dtype == DType::kI8);
    if (values || std::find(kParts.begin(), kParts.end(), part) != kParts.end()) {
      layers[tensor.name.substr(0, dot)][part] = std::move(tensor);
    } else {
      rest.push_back(std::move(tensor));
    }
  }
  Folder folder(config, files);
  for (auto& [layer, parts] : layers) {
    INFERD_ASSIGN(TensorInfo folded, folder.Fold(layer, std::move(parts)));
    rest.push_back(std::move(folded));
  }
  *tensors = std::move(rest);
  return {};
}

}  // namespace inferd::store
