// SPDX-License-Identifier: Apache-2.0
// What the parser has to know of a tool: its name and the types of its parameters.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::text {

struct ToolShape {
  std::string name;
  std::map<std::string, std::uint8_t, std::less<>> types;  // TypeBits of each known parameter
};

/// `parameters`: a JSON schema, or null. What the schema does not say plainly is of any type.
ToolShape MakeToolShape(std::string_view name, const nlohmann::ordered_json& parameters);

}  // namespace inferd::text
