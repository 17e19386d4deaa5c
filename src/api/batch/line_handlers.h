// SPDX-License-Identifier: Apache-2.0
// Which endpoints the lines of a batch may call: the handlers are those of HTTP.
#pragma once

#include "api/http/endpoint.h"

#include <string_view>

namespace inferd::api {

/// nullptr: no line may call this.
Handler HandlerOf(std::string_view url);

}  // namespace inferd::api
