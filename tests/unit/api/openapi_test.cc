// SPDX-License-Identifier: Apache-2.0
// /openapi.json: every endpoint is in it and nothing else, and what it refers to is there.
#include "api/server/openapi.h"

#include "api/core/limits.h"
#include "api/server/endpoints.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <set>
#include <string>

namespace inferd::api {
namespace {

using Json = nlohmann::json;

/// Endpoints that end in '/' take one more segment.
std::string Path(const std::string& path) {
  const std::size_t open = path.find('{');
  if (open != std::string::npos) {
    return path.substr(0, open) + "*" + path.substr(path.find('}') + 1);
  }
  return path.ends_with('/') ? path + "*" : path;
}

TEST(OpenApi, HasEveryEndpointAndNoOther) {
  std::set<std::string> served;
  std::set<std::string> described;
  for (const Endpoint& endpoint : Endpoints()) {
    served.insert(std::string(endpoint.method) + " " + Path(std::string(endpoint.path)));
  }
  for (const OperationDoc& doc : OperationDocs()) {
    described.insert(std::string(doc.method) + " " + Path(std::string(doc.path)));
  }
  EXPECT_EQ(served, described);
}

void CheckReferences(const Json& value, const Json& schemas) {
  if (value.is_object() && value.contains("$ref")) {
    const std::string name = value["$ref"].get<std::string>();
    const std::string prefix = "#/components/schemas/";
    ASSERT_TRUE(name.starts_with(prefix)) << name;
    EXPECT_TRUE(schemas.contains(name.substr(prefix.size()))) << name;
  }
  if (value.is_structured()) {
    for (const auto& item : value) {
      CheckReferences(item, schemas);
    }
  }
}

TEST(OpenApi, ItsReferencesLeadSomewhereAndItsLimitsAreTheTable) {
  const Json document = Json::parse(OpenApiDocument("1.2.3"));
  EXPECT_EQ(document["info"]["version"], "1.2.3");
  const Json& schemas = document["components"]["schemas"];
  CheckReferences(document, schemas);
  const Json& temperature =
      schemas["ChatCompletionRequest"]["properties"]["temperature"]["anyOf"][0];
  EXPECT_EQ(temperature["maximum"], limits::kTemperature.max);
  const Json& top_p = schemas["CompletionRequest"]["properties"]["top_p"]["anyOf"][0];
  EXPECT_EQ(top_p["exclusiveMinimum"], limits::kTopP.min);
}

}  // namespace
}  // namespace inferd::api
