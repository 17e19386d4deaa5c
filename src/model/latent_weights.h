// SPDX-License-Identifier: Apache-2.0
// What latent attention makes of kv_b_proj. As stored its rows give K and V of each head from the
// latent of a token; absorbed, K's part brings a query into the latent space instead, and V's part
// brings the sum of latents out of it.
#pragma once

#include "inferd/result.h"
#include "model/weights.h"

namespace inferd::model {

/// Fills target->k_up and v_up from `ref`, the rows [heads * (nope_dim + value_dim), kv_rank] of
/// the shard's heads. A quantised layer becomes BF16. Refuses NaN and infinities, and types without
/// plain values, by tensor name.
Result<> PackLatent(const store::Model& source,
                    const store::WeightRef& ref,
                    ops::Device& device,
                    LayerWeights* target);

}  // namespace inferd::model
