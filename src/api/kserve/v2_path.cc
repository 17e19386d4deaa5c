// SPDX-License-Identifier: Apache-2.0
#include "api/kserve/v2_path.h"

#include <charconv>

namespace inferd::api {
namespace {

std::string Unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, code, 16).ptr ==
            text.data() + i + 3) {
      out += static_cast<char>(code);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

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
    parsed.version = Unescape(path.substr(at + kVersions.size()));
    path = path.substr(0, at);
  }
  parsed.name = Unescape(path);
  return parsed;
}

}  // namespace inferd::api
