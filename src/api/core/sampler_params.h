// SPDX-License-Identifier: Apache-2.0
// The rarer samplers, by llama.cpp's names: typical_p, XTC, DRY, dynamic temperature, and the order
// of all.
#pragma once

#include "api/core/fields.h"
#include "inferd/result.h"
#include "spec/sampling_params.h"
#include "text/tokenizer.h"

#include <cstdint>

namespace inferd::api {

/// `vocab_size`: of the model's head.
Result<> ParseSamplerParams(const text::Tokenizer& tokenizer,
                            std::int64_t vocab_size,
                            const Fields& fields,
                            spec::SamplingParams* sampling);

}  // namespace inferd::api
