// SPDX-License-Identifier: Apache-2.0
#include "api/kserve/v2_path.h"

#include "api/http/http_message.h"

namespace inferd::api {

V2Path ParseV2Path(std::string_view path, std::string_view prefix) {
  V2Path parsed;
  path.remove_prefix(prefix.size());
  for (const std::string_view action :
       {"/ready", "/infer", "/generate", "/generate_stream", "/load", "/unload"}) {
    if (path.ends_with(action)) {
      parsed.action = action.substr(1);
      path.remove_suffix(action.size());
      break;
    }
  }
  constexpr std::string_view kVersions = "/versions/";
  const std::size_t at = path.rfind(kVersions);
  if (at != std::string_view::npos && path.find('/', at + kVersions.size()) == path.npos) {
    parsed.version = PercentDecoded(path.substr(at + kVersions.size()));
    path = path.substr(0, at);
  }
  parsed.name = PercentDecoded(path);
  return parsed;
}

}  // namespace inferd::api
