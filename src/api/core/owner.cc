// SPDX-License-Identifier: Apache-2.0
#include "api/core/owner.h"

namespace inferd::api {

std::string OwnerOf(const ServerContext& context) {
  return context.admission == nullptr ? "-" : context.admission->owner();
}

}  // namespace inferd::api
