// SPDX-License-Identifier: Apache-2.0
// Hand-made model files for tests: a temporary folder, and writers of GGUF and safetensors that can
// lie.
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inferd::store {

class TempDir {
 public:
  TempDir() : TempDir(std::filesystem::temp_directory_path()) {}
  explicit TempDir(const std::filesystem::path& parent) {
    std::string pattern = (parent / "inferd-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string path() const { return path_; }
  std::string Write(const std::string& name, std::string_view content) const {
    const std::string path = path_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

 private:
  std::string path_;
};

inline std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

template <class T>
std::string Bytes(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

inline std::string GgufString(std::string_view text) {
  return Bytes<std::uint64_t>(text.size()) + std::string(text);
}

/// A tensor as the header of a GGUF file tells it; dimensions innermost first, as in the file.
struct GgufTensor {
  std::string name;
  std::vector<std::uint64_t> dims;
  std::uint32_t type = 0;
  std::uint64_t offset = 0;
};

/// Everything can be set to something wrong.
struct GgufSpec {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::vector<std::pair<std::string, std::string>> pairs;  // key, encoded type and value
  std::vector<GgufTensor> tensors;
  std::uint64_t num_pairs = ~std::uint64_t{0};  // default: as many as there are
  std::uint64_t num_tensors = ~std::uint64_t{0};
  std::uint64_t alignment = 32;
  std::size_t data_bytes = 0;

  void Add(const std::string& key, const std::string& encoded) { pairs.emplace_back(key, encoded); }
  void AddU32(const std::string& key, std::uint32_t value) {
    Add(key, Bytes<std::uint32_t>(4) + Bytes(value));
  }
  void AddU16(const std::string& key, std::uint16_t value) {
    Add(key, Bytes<std::uint32_t>(2) + Bytes(value));
  }
  void AddF32(const std::string& key, float value) {
    Add(key, Bytes<std::uint32_t>(6) + Bytes(value));
  }
  void AddString(const std::string& key, std::string_view value) {
    Add(key, Bytes<std::uint32_t>(8) + GgufString(value));
  }
  void AddStrings(const std::string& key, const std::vector<std::string>& values) {
    std::string encoded =
        Bytes<std::uint32_t>(9) + Bytes<std::uint32_t>(8) + Bytes<std::uint64_t>(values.size());
    for (const std::string& value : values) {
      encoded += GgufString(value);
    }
    Add(key, encoded);
  }
  /// F32, placed behind the tensors that are there.
  void AddTensor(const std::string& name, std::vector<std::uint64_t> dims) {
    std::uint64_t count = 1;
    for (const std::uint64_t dim : dims) {
      count *= dim;
    }
    tensors.push_back({name, std::move(dims), 0, data_bytes});
    data_bytes = (data_bytes + count * 4 + 31) / 32 * 32;
  }

  std::string Header() const {
    std::string text = magic + Bytes(version);
    text += Bytes<std::uint64_t>(~num_tensors == 0 ? tensors.size() : num_tensors);
    text += Bytes<std::uint64_t>(~num_pairs == 0 ? pairs.size() : num_pairs);
    for (const auto& [key, value] : pairs) {
      text += GgufString(key) + value;
    }
    for (const GgufTensor& tensor : tensors) {
      text += GgufString(tensor.name) +
              Bytes<std::uint32_t>(static_cast<std::uint32_t>(tensor.dims.size()));
      for (const std::uint64_t dim : tensor.dims) {
        text += Bytes(dim);
      }
      text += Bytes(tensor.type) + Bytes(tensor.offset);
    }
    return text;
  }
  std::string Encode() const {
    std::string text = Header();
    text.resize((text.size() + alignment - 1) / alignment * alignment);
    return text + std::string(data_bytes, '\1');
  }
};

/// A complete one-layer llama of 32 hidden values; 64 tokens.
inline GgufSpec TinyGgufLlama() {
  GgufSpec spec;
  spec.AddString("general.architecture", "llama");
  spec.AddU32("llama.block_count", 1);
  spec.AddU32("llama.context_length", 128);
  spec.AddU32("llama.embedding_length", 32);
  spec.AddU32("llama.feed_forward_length", 64);
  spec.AddU32("llama.attention.head_count", 2);
  spec.AddU32("llama.attention.head_count_kv", 1);
  spec.AddF32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  spec.AddTensor("token_embd.weight", {32, 64});
  spec.AddTensor("output.weight", {32, 64});
  spec.AddTensor("output_norm.weight", {32});
  spec.AddTensor("blk.0.attn_norm.weight", {32});
  spec.AddTensor("blk.0.attn_q.weight", {32, 32});
  spec.AddTensor("blk.0.attn_k.weight", {32, 16});
  spec.AddTensor("blk.0.attn_v.weight", {32, 16});
  spec.AddTensor("blk.0.attn_output.weight", {32, 32});
  spec.AddTensor("blk.0.ffn_norm.weight", {32});
  spec.AddTensor("blk.0.ffn_gate.weight", {32, 64});
  spec.AddTensor("blk.0.ffn_up.weight", {32, 64});
  spec.AddTensor("blk.0.ffn_down.weight", {64, 32});
  return spec;
}

/// Header length, header, data.
inline std::string Safetensors(const std::string& header, std::size_t data_bytes) {
  return Bytes<std::uint64_t>(header.size()) + header + std::string(data_bytes, '\0');
}

/// Names and shapes to a header of F32 tensors, one behind the other.
inline std::string F32File(const std::vector<std::pair<std::string, std::vector<int>>>& tensors) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  std::size_t at = 0;
  for (const auto& [name, shape] : tensors) {
    std::size_t count = 1;
    std::string dims;
    for (const int dim : shape) {
      count *= static_cast<std::size_t>(dim);
      dims += (dims.empty() ? "" : ",") + std::to_string(dim);
    }
    header += ",\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[" + dims + "],\"data_offsets\":[" +
              std::to_string(at) + "," + std::to_string(at + count * 4) + "]}";
    at += count * 4;
  }
  return Safetensors(header + "}", at);
}

/// The tensors of a one-layer llama as transformers names them.
inline std::vector<std::pair<std::string, std::vector<int>>> TinyHfTensors() {
  const std::string layer = "model.layers.0.";
  return {{"model.embed_tokens.weight", {64, 32}},
          {"lm_head.weight", {64, 32}},
          {"model.norm.weight", {32}},
          {layer + "input_layernorm.weight", {32}},
          {layer + "self_attn.q_proj.weight", {32, 32}},
          {layer + "self_attn.k_proj.weight", {16, 32}},
          {layer + "self_attn.v_proj.weight", {16, 32}},
          {layer + "self_attn.o_proj.weight", {32, 32}},
          {layer + "post_attention_layernorm.weight", {32}},
          {layer + "mlp.gate_proj.weight", {64, 32}},
          {layer + "mlp.up_proj.weight", {64, 32}},
          {layer + "mlp.down_proj.weight", {32, 64}}};
}

inline std::string TinyHfConfig() {
  return R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":64,"hidden_size":32,
"intermediate_size":64,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,
"max_position_embeddings":128,"rms_norm_eps":1e-5,"hidden_act":"silu"})";
}

}  // namespace inferd::store
