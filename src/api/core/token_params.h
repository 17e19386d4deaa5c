// SPDX-License-Identifier: Apache-2.0
// Parameters about single tokens: logit_bias, allowed_token_ids and bad_words.
#pragma once

#include "api/core/context.h"
#include "api/core/fields.h"
#include "inferd/result.h"
#include "spec/sampling_params.h"

namespace inferd::api {

Result<> ParseTokenParams(const ServerContext& context,
                          const Fields& fields,
                          spec::SamplingParams* sampling);

}  // namespace inferd::api
