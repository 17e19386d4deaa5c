// SPDX-License-Identifier: Apache-2.0
// What a chat template wants, found by rendering a small conversation.
#pragma once

#include "text/chat_template.h"

namespace inferd::api {

/// Arguments of past tool calls come out right only when they are given as JSON text. Most
/// templates want objects, some put the text between their own marks.
bool WantsArgumentsAsText(const text::ChatTemplate& chat_template);

/// The prompt depends on reasoning_effort: the model has learnt what it means.
bool KnowsReasoningEffort(const text::ChatTemplate& chat_template);

}  // namespace inferd::api
