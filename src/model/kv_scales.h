// SPDX-License-Identifier: Apache-2.0
// Scales that a checkpoint was calibrated with, for pages of FP8.
#pragma once

#include "inferd/result.h"
#include "spec/parallel.h"
#include "store/model.h"
#include "store/partial_model.h"

#include <vector>

namespace inferd::model {

/// A page holds K / k and V / v.
struct KvScale {
  float k = 1;
  float v = 1;
};

/// Of the shard's layers, in order; 1 where the files have none. Refuses scales that are not one
/// finite number above 0, by tensor name.
Result<std::vector<KvScale>> ReadKvScales(const store::Model& source, const spec::ShardPlan& shard);

/// The bytes of the files that ReadKvScales reads; nothing is read yet.
std::vector<store::FileRange> RangesOfKvScales(const store::Model& source,
                                               const spec::ShardPlan& shard);

}  // namespace inferd::model
