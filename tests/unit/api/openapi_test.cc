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

void CheckReferences(const Json& value, const Json& document) {
  if (value.is_object() && value.contains("$ref")) {
    const std::string name = value["$ref"].get<std::string>();
    ASSERT_TRUE(name.starts_with("#/components/")) << name;
    EXPECT_TRUE(document.contains(Json::json_pointer(name.substr(1)))) << name;
  }
  if (value.is_structured()) {
    for (const auto& item : value) {
      CheckReferences(item, document);
    }
  }
}

TEST(OpenApi, ItsReferencesLeadSomewhereAndItsLimitsAreTheTable) {
  const Json document = Json::parse(OpenApiDocument("1.2.3"));
  EXPECT_EQ(document["info"]["version"], "1.2.3");
  const Json& schemas = document["components"]["schemas"];
  CheckReferences(document, document);
  const Json& temperature =
      schemas["ChatCompletionRequest"]["properties"]["temperature"]["anyOf"][0];
  EXPECT_EQ(temperature["maximum"], limits::kTemperature.max);
  const Json& top_p = schemas["CompletionRequest"]["properties"]["top_p"]["anyOf"][0];
  EXPECT_EQ(top_p["exclusiveMinimum"], limits::kTopP.min);
}

/// Names of the shared parameters that an operation takes.
std::set<std::string> Shared(const Json& operation) {
  std::set<std::string> names;
  for (const Json& parameter : operation.value("parameters", Json::array())) {
    const std::string name = parameter.value("$ref", "");
    names.insert(name.substr(name.rfind('/') + 1));
  }
  return names;
}

TEST(OpenApi, TellsGatewaysOfTheTenantsHeaders) {
  const Json document = Json::parse(OpenApiDocument("1"));
  const std::set<std::string> all = {"Tenant", "Weight", "Fairness", "Objective", "Session"};
  EXPECT_EQ(Shared(document["paths"]["/v1/chat/completions"]["post"]), all);
  EXPECT_EQ(Shared(document["paths"]["/v1/messages"]["post"]), all);
  EXPECT_EQ(Shared(document["paths"]["/metrics"]["get"]), std::set<std::string>());
  EXPECT_EQ(Shared(document["paths"]["/v1/files"]["get"]).count("Tenant"), 0U);
  const Json& parameters = document["components"]["parameters"];
  EXPECT_EQ(parameters["Tenant"]["name"], "X-Inferd-Tenant");
  EXPECT_EQ(parameters["Weight"]["name"], "X-Inferd-Weight");
  EXPECT_EQ(parameters["Weight"]["in"], "header");
  EXPECT_EQ(parameters["Weight"]["schema"]["maximum"], tenant::kMaxWeight);
}

}  // namespace
}  // namespace inferd::api
