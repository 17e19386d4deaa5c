// SPDX-License-Identifier: Apache-2.0
// config.json of a Hugging Face model to ModelSpec, as the model's reference implementation would
// read it.
#pragma once

#include "inferd/result.h"
#include "spec/model_spec.h"
#include "store/families.h"
#include "store/quantised.h"

#include <optional>
#include <string_view>

namespace inferd::store {

struct HfModelConfig {
  const Family* family = nullptr;
  spec::ModelSpec spec;
  std::optional<QuantConfig> quant;
};

/// `what` names the file in messages. Refuses unknown architectures, rope types, activations and
/// ways of quantising by name. spec.weight_dtype and spec.name are left for the caller.
Result<HfModelConfig> ParseHfConfig(std::string_view what, std::string_view text);

}  // namespace inferd::store
