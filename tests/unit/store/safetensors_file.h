// SPDX-License-Identifier: Apache-2.0
// A safetensors file taken apart, to be put together again with other contents.
#pragma once

#include "unit/store/files.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace inferd::store {

struct SafetensorsFile {
  nlohmann::ordered_json header;
  std::string data;

  static SafetensorsFile Read(const std::string& path) {
    const std::string bytes = ReadAll(path);
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof(size));
    return {nlohmann::ordered_json::parse(bytes.substr(8, size)), bytes.substr(8 + size)};
  }
  std::string Bytes() const {
    const std::string text = header.dump();
    return store::Bytes<std::uint64_t>(text.size()) + text + data;
  }
  /// Where a tensor begins in data.
  std::size_t At(const std::string& name) const {
    return header.at(name).at("data_offsets").at(0).get<std::size_t>();
  }
  std::span<const float> Floats(const std::string& name) const {
    const auto begin = At(name);
    const auto end = header.at(name).at("data_offsets").at(1).get<std::size_t>();
    return {reinterpret_cast<const float*>(data.data() + begin), (end - begin) / sizeof(float)};
  }
  /// Makes the first of a layer's scales one that loses bits as an F16.
  void MakeScaleSmall(const std::string& layer) {
    const std::string name = layer + ".weight_scale";
    const std::string value = store::Bytes(1e-6F);
    const bool wide = header.at(name).at("dtype") == "F32";  // else BF16
    data.replace(At(name), wide ? 4 : 2, wide ? value : value.substr(2));
  }
  /// A tensor of `count` F32 zeros before all others.
  void PutFirst(const std::string& name, std::size_t count) {
    const std::size_t bytes = count * sizeof(float);
    for (auto& [other, entry] : header.items()) {
      if (other != "__metadata__") {
        for (auto& offset : entry.at("data_offsets")) {
          offset = offset.get<std::size_t>() + bytes;
        }
      }
    }
    header[name]["dtype"] = "F32";
    header[name]["shape"] = std::vector{count};
    header[name]["data_offsets"] = std::vector<std::size_t>{0, bytes};
    data.insert(0, bytes, '\0');
  }
};

}  // namespace inferd::store
