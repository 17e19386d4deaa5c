// SPDX-License-Identifier: Apache-2.0
// The keys of config.json that only DeepSeek's models have: latent attention, and experts in
// groups.
#pragma once

#include "inferd/result.h"
#include "spec/model_spec.h"
#include "store/families.h"
#include "store/json_util.h"

namespace inferd::store {

/// spec->latent, and the head sizes that follow from it. Refuses absent keys and what is not an
/// integer, by name.
Result<> FillLatent(const JsonFields& config, spec::ModelSpec* spec);

/// spec->attention_scale, once the ropes are known: yarn's mscale_all_dim makes attention sharper.
void FillLatentScale(spec::ModelSpec* spec);

/// spec->moe and which layers have experts. Refuses methods that are not known, by name.
Result<> FillDeepseekMoe(const JsonFields& config, const Family& family, spec::ModelSpec* spec);

}  // namespace inferd::store
