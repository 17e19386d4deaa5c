// SPDX-License-Identifier: Apache-2.0
// /v2/models/{name}[/versions/{version}][/{action}]: names may hold '/'.
#pragma once

#include <string>
#include <string_view>

namespace inferd::api {

struct V2Path {
  std::string name;
  std::string version;  // empty: not given
  std::string action;   // "ready", "infer", "generate", "generate_stream", "load", ...; or empty
};

/// `prefix` is what stands before the name.
V2Path ParseV2Path(std::string_view path, std::string_view prefix);

}  // namespace inferd::api
