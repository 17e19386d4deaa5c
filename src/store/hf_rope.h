// SPDX-License-Identifier: Apache-2.0
// Rotary embedding of config.json: rope_theta with rope_scaling (old), or rope_parameters (new),
// flat or per kind of layer. Included by .cc files of this room only.
#pragma once

#include "inferd/result.h"
#include "spec/model_spec.h"
#include "store/families.h"
#include "store/json_util.h"

namespace inferd::store {

/// Fills spec->ropes, and LayerSpec::rope of layers with a window where they have a rope of their
/// own. Needs head_dim, max_position and the windows of spec->layers.
Result<> FillHfRope(const JsonFields& config, const Family& family, spec::ModelSpec* spec);

}  // namespace inferd::store
