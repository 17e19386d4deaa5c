// SPDX-License-Identifier: Apache-2.0
#include "api/batch/batch_record.h"

#include "base/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

struct Text {
  const char* name;
  std::string BatchRecord::*field;
};
constexpr Text kTexts[] = {{"id", &BatchRecord::id},
                           {"owner", &BatchRecord::owner},
                           {"endpoint", &BatchRecord::endpoint},
                           {"input_file_id", &BatchRecord::input_file_id},
                           {"metadata", &BatchRecord::metadata},
                           {"output_file_id", &BatchRecord::output_file_id},
                           {"error_file_id", &BatchRecord::error_file_id}};

struct Number {
  const char* name;
  std::int64_t BatchRecord::*field;
};
constexpr Number kTimes[] = {{"in_progress_at", &BatchRecord::in_progress_at},
                             {"expires_at", &BatchRecord::expires_at},
                             {"finalizing_at", &BatchRecord::finalizing_at},
                             {"completed_at", &BatchRecord::completed_at},
                             {"failed_at", &BatchRecord::failed_at},
                             {"expired_at", &BatchRecord::expired_at},
                             {"cancelling_at", &BatchRecord::cancelling_at},
                             {"cancelled_at", &BatchRecord::cancelled_at}};
constexpr Number kNumbers[] = {{"created_at", &BatchRecord::created_at},
                               {"output_expiry_s", &BatchRecord::output_expiry_s},
                               {"total", &BatchRecord::total},
                               {"completed", &BatchRecord::completed},
                               {"failed", &BatchRecord::failed},
                               {"order", &BatchRecord::order}};

Json TextOrNull(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json ErrorList(const std::vector<BatchError>& errors) {
  Json list = Json::array();
  for (const BatchError& error : errors) {
    list.push_back({{"code", error.code},
                    {"message", error.message},
                    {"param", TextOrNull(error.param)},
                    {"line", error.line == 0 ? Json() : Json(error.line)}});
  }
  return list;
}

Result<BatchState> StateFrom(const Json& name) {
  for (std::size_t state = 0; state < kBatchStateNames.size(); ++state) {
    if (name == kBatchStateNames[state]) {
      return static_cast<BatchState>(state);
    }
  }
  return DataLoss("no batch has the state {}", name.dump());
}

std::string TextOf(const Json& value) { return value.is_null() ? "" : value.get<std::string>(); }

}  // namespace

std::string BatchToText(const BatchRecord& record) {
  Json json;
  for (const Text& text : kTexts) {
    json[text.name] = record.*text.field;
  }
  for (const Number& number : kTimes) {
    json[number.name] = record.*number.field;
  }
  for (const Number& number : kNumbers) {
    json[number.name] = record.*number.field;
  }
  json["state"] = NameOf(record.state);
  json["ending"] = NameOf(record.ending);
  json["errors"] = ErrorList(record.errors);
  json["has_output"] = record.has_output;
  json["has_errors"] = record.has_errors;
  return json.dump();
}

Result<BatchRecord> BatchFromText(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  BatchRecord record;
  try {
    for (const Text& field : kTexts) {
      json.at(field.name).get_to(record.*field.field);
    }
    for (const Number& field : kTimes) {
      json.at(field.name).get_to(record.*field.field);
    }
    for (const Number& field : kNumbers) {
      json.at(field.name).get_to(record.*field.field);
    }
    INFERD_ASSIGN(record.state, StateFrom(json.at("state")));
    INFERD_ASSIGN(record.ending, StateFrom(json.at("ending")));
    for (const Json& error : json.at("errors")) {
      const Json& line = error.at("line");
      record.errors.push_back({error.at("code").get<std::string>(),
                               error.at("message").get<std::string>(),
                               TextOf(error.at("param")),
                               line.is_null() ? 0 : line.get<std::int64_t>()});
    }
    json.at("has_output").get_to(record.has_output);
    json.at("has_errors").get_to(record.has_errors);
    if (!Json::accept(record.metadata)) {
      return DataLoss("the metadata is no JSON");
    }
  } catch (const Json::exception& error) {
    return DataLoss("{}", error.what());
  }
  return record;
}

Json BatchObject(const BatchRecord& record) {
  Json object = {{"id", record.id},
                 {"object", "batch"},
                 {"endpoint", record.endpoint},
                 {"errors", nullptr},
                 {"input_file_id", record.input_file_id},
                 {"completion_window", "24h"},
                 {"status", NameOf(record.state)},
                 {"output_file_id", record.has_output ? Json(record.output_file_id) : Json()},
                 {"error_file_id", record.has_errors ? Json(record.error_file_id) : Json()},
                 {"created_at", record.created_at}};
  if (!record.errors.empty()) {
    object["errors"] = {{"object", "list"}, {"data", ErrorList(record.errors)}};
  }
  for (const Number& time : kTimes) {
    object[time.name] = record.*time.field == 0 ? Json() : Json(record.*time.field);
  }
  object["request_counts"] = {
      {"total", record.total}, {"completed", record.completed}, {"failed", record.failed}};
  object["metadata"] = Json::parse(record.metadata);
  return object;
}

}  // namespace inferd::api
