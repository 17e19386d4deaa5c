// SPDX-License-Identifier: Apache-2.0
// The OpenAPI 3.1 document of this server, made from the table of endpoints' descriptions and the
// one table of limits, so that it cannot promise what the handlers refuse.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace inferd::api {

/// What the document says of one operation. Every entry of Endpoints() has one, and the other way
/// round (a test checks both).
struct OperationDoc {
  std::string_view method;
  std::string_view path;  // with {name} for a segment that stands for any
  std::string_view tag;
  std::string_view summary;
  std::string_view request;  // name of a schema; empty: no body
  std::string_view reply;    // name of a schema; empty: any JSON object
  /// What a reply may come as: JSON, an event stream, lines of JSON, plain text, or bytes.
  enum class Kind { kJson, kJsonOrEvents, kJsonOrLines, kText, kBytes } kind = Kind::kJson;
  /// Of a list: its query parameters beside `after` and `order`; limit 0: it is no list.
  std::int64_t list_limit = 0;  // largest `limit`
  std::string_view filter = {};
};

std::span<const OperationDoc> OperationDocs();

/// components/schemas.
nlohmann::ordered_json OpenApiSchemas();

/// Adds what it says of tools, output formats and reasoning to components/schemas.
void AddOpenApiTools(nlohmann::ordered_json* schemas);

/// The whole document as JSON text, with `server_version` in it.
std::string OpenApiDocument(std::string_view server_version);

}  // namespace inferd::api
