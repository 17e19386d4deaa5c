// SPDX-License-Identifier: Apache-2.0
// StepBatch: the rows of one step of one expert group, flattened: every token a row, sequences one
// after the other.
#pragma once

#include "ops/device.h"

#include <cstdint>
#include <vector>

namespace inferd::model {

struct StepBatch {
  std::vector<std::int32_t> ids;        // [rows], filled on the first stage only
  std::vector<std::int32_t> positions;  // [rows]
  std::vector<ops::AttentionSequence> sequences;

  std::int64_t rows() const { return static_cast<std::int64_t>(positions.size()); }
  void Clear() {
    ids.clear();
    positions.clear();
    sequences.clear();
  }
};

}  // namespace inferd::model
