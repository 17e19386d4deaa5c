// SPDX-License-Identifier: Apache-2.0
#include "api/core/metadata.h"

#include <nlohmann/json.hpp>

#include <string>

namespace inferd::api {

using Json = nlohmann::ordered_json;

Result<const Json*> ReadMetadata(const Fields& fields) {
  const Json* const metadata = fields.Find("metadata");
  if (metadata == nullptr) {
    return metadata;
  }
  if (!metadata->is_object() || metadata->size() > limits::kMetadataKeys) {
    return FieldError(fields.fault(),
                      "metadata",
                      "metadata must be an object of at most {} strings",
                      limits::kMetadataKeys);
  }
  for (const auto& [key, value] : metadata->items()) {
    if (key.size() > limits::kMetadataKeyBytes || !value.is_string() ||
        value.get_ref<const std::string&>().size() > limits::kMetadataBytes) {
      return FieldError(fields.fault(),
                        "metadata." + key.substr(0, limits::kMetadataKeyBytes),
                        "each entry of metadata has a key of at most {} bytes and a string of at "
                        "most {}",
                        limits::kMetadataKeyBytes,
                        limits::kMetadataBytes);
    }
  }
  return metadata;
}

}  // namespace inferd::api
