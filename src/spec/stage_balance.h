// SPDX-License-Identifier: Apache-2.0
// Layers to pipeline stages, balanced by the weights that a stage holds.
#pragma once

#include "inferd/result.h"
#include "spec/model_spec.h"
#include "spec/parallel.h"

#include <vector>

namespace inferd::spec {

/// Runs of layers, one per stage, none empty. `partition`: layers per stage, as the user gave them;
/// empty: the cut whose heaviest stage is lightest, embedding and head included, and among those
/// the most even one.
Result<std::vector<Range>> CutStages(const ModelSpec& model,
                                     int stages,
                                     const std::vector<int>& partition);

/// Parameters of one layer of the whole model.
std::int64_t CountLayerParameters(const ModelSpec& model, std::int64_t layer);

}  // namespace inferd::spec
