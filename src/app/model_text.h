// SPDX-License-Identifier: Apache-2.0
// From a model's files to its text side: tokenizer, chat template, sampling defaults.
#pragma once

#include "api/core/served_model.h"
#include "inferd/config.h"
#include "inferd/result.h"
#include "store/model.h"
#include "text/tokenizer.h"

#include <memory>
#include <string>
#include <vector>

namespace inferd::app {

Result<std::shared_ptr<const text::Tokenizer>> MakeTokenizer(const store::TokenizerFiles& files);

/// `config.model` is what the user typed; it is the model's name unless others are given.
Result<std::shared_ptr<const api::ServedModel>> MakeServedModel(const store::Model& model,
                                                                const ModelConfig& config);

}  // namespace inferd::app
