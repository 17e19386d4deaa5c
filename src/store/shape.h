// SPDX-License-Identifier: Apache-2.0
// ModelShape: what planning needs to know of a model, from a header or a config alone. No weights
// are read and nothing is downloaded.
#pragma once

#include "inferd/result.h"
#include "spec/model_spec.h"
#include "spec/parallel.h"

#include <string>
#include <string_view>

namespace inferd::store {

struct ModelShape {
  spec::ModelSpec spec;
  spec::CutGranularity cut;
  double bytes_per_weight = 2;
  bool fp8_kv = false;  // as store::Model::fp8_kv
  std::string source;   // where it was read: a path, or "built in"
};

/// A config.json, a folder with one (weights need not be there), a GGUF file's header, a name of
/// configs/model_shapes.json, or a model that is in the cache. kNotFound names what is near.
Result<ModelShape> ReadShape(const std::string& name_or_path);

/// Text of configs/model_shapes.json at build time.
std::string_view BuiltInShapes();

}  // namespace inferd::store
