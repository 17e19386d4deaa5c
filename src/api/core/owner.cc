// SPDX-License-Identifier: Apache-2.0
#include "api/core/context.h"

#include <string>

namespace inferd::api {

std::string OwnerOf(const ServerContext& context) {
  return context.admission == nullptr ? "-" : context.admission->owner();
}

}  // namespace inferd::api
