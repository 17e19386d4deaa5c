// SPDX-License-Identifier: Apache-2.0
#include "api/batch/batch_input.h"

#include "api/batch/line_handlers.h"
#include "api/core/fields.h"
#include "api/core/json_parse.h"
#include "base/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShownBytes = 80;

std::string Shown(const std::string& text) {
  // Whole characters of valid UTF-8 only.
  std::size_t size = std::min(text.size(), kShownBytes);
  while (size < text.size() && size > 0 &&
         (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) {
    --size;
  }
  return text.substr(0, size);
}

/// A needed string of a line; the fault gets a code that says what is wrong with it.
Result<std::string> Needed(const Fields& fields, std::string_view name) {
  const Json* const value = fields.Find(name);
  fields.fault()->code = value == nullptr ? "missing_required_parameter" : "invalid_value";
  INFERD_ASSIGN(std::string text, fields.NeededString(name));
  fields.fault()->code.clear();
  return text;
}

Result<BatchLine> ReadLine(std::string_view text, std::string_view endpoint, Fault* fault) {
  fault->code = "invalid_json_line";
  INFERD_ASSIGN(const Json json, ParseJsonObject(text, fault));
  fault->code.clear();
  const Fields fields(json, fault);
  BatchLine line;
  INFERD_ASSIGN(line.custom_id, Needed(fields, "custom_id"));
  if (line.custom_id.empty() || line.custom_id.size() > limits::kCustomIdBytes) {
    return FieldError(
        fault, "custom_id", "custom_id must have 1 to {} bytes", limits::kCustomIdBytes);
  }
  INFERD_ASSIGN(const std::string method, Needed(fields, "method"));
  if (method != "POST") {
    return FieldError(fault, "method", "method is '{}'; it must be POST", Shown(method));
  }
  INFERD_ASSIGN(line.url, Needed(fields, "url"));
  if (!endpoint.empty() && line.url != endpoint) {
    fault->code = "mismatched_endpoint";
    return FieldError(
        fault, "url", "url is '{}', but this batch was made for {}", Shown(line.url), endpoint);
  }
  if (!IsBatchUrl(line.url)) {
    return FieldError(
        fault, "url", "url is '{}'; it must be one of {}", Shown(line.url), BatchUrls());
  }
  const Json* const body = fields.Find("body");
  if (body == nullptr || !body->is_object()) {
    fault->code = body == nullptr ? "missing_required_parameter" : "invalid_value";
    return FieldError(fault, "body", "body must be an object");
  }
  return line;
}

/// The text of a line without its line end.
std::string_view Trimmed(std::string_view line) {
  if (line.ends_with('\r')) {
    line.remove_suffix(1);
  }
  return line;
}

const Json* Member(const Json& object, const char* name) {
  const auto it = object.is_object() ? object.find(name) : object.end();
  return it == object.end() ? nullptr : &*it;
}

}  // namespace

bool IsGoodStatus(int status) { return status >= 200 && status < 300; }

bool IsBatchUrl(std::string_view url) { return HandlerOf(url) != nullptr; }

BatchInputReader::BatchInputReader(std::string_view text,
                                   std::string_view endpoint,
                                   const BatchInputLimits& limits)
    : text_(text), endpoint_(endpoint), limits_(limits) {}

void BatchInputReader::Refuse(std::string code, std::string message, std::string param) {
  input_.errors.push_back({std::move(code), std::move(message), std::move(param), number_});
}

void BatchInputReader::ReadLineAt(std::size_t start, std::string_view line) {
  if (line.size() > limits_.max_line_bytes) {
    return Refuse(
        "line_too_long",
        fmt::format(
            "The line has {} bytes; at most {} are taken", line.size(), limits_.max_line_bytes));
  }
  if (input_.lines.size() == limits_.max_lines) {
    at_ = text_.size();
    return Refuse("too_many_requests",
                  fmt::format("A batch holds at most {} requests", limits_.max_lines));
  }
  Fault fault;
  auto read = ReadLine(line, endpoint_, &fault);
  if (!read.ok()) {
    return Refuse(fault.code, read.error().message(), fault.param);
  }
  if (!ids_.insert(read->custom_id).second) {
    return Refuse("duplicate_custom_id",
                  fmt::format("The custom_id '{}' is there twice", Shown(read->custom_id)),
                  "custom_id");
  }
  read->at = start;
  read->size = line.size();
  input_.lines.push_back(*std::move(read));
}

bool BatchInputReader::ReadOn(std::size_t bytes) {
  const std::size_t stop = bytes < text_.size() - at_ ? at_ + bytes : text_.size();
  while (!done() && at_ < stop) {
    const std::size_t end = std::min(text_.find('\n', at_), text_.size());
    const std::string_view line = Trimmed(text_.substr(at_, end - at_));
    const std::size_t start = std::exchange(at_, std::min(end + 1, text_.size()));
    ++number_;
    if (line.find_first_not_of(" \t") != std::string_view::npos) {
      ReadLineAt(start, line);
    }
  }
  if (!done()) {
    return false;
  }
  if (input_.lines.empty() && input_.errors.empty()) {
    number_ = 0;
    Refuse("empty_file", "The file has no requests");
  }
  return true;
}

BatchInput ReadBatchInput(std::string_view text,
                          std::string_view endpoint,
                          const BatchInputLimits& limits) {
  BatchInputReader reader(text, endpoint, limits);
  [[maybe_unused]] const bool all = reader.ReadOn(text.size());
  return reader.Take();
}

std::string BodyOf(std::string_view line) {
  const Json json = Json::parse(line, nullptr, false);
  const Json* const body = Member(json, "body");
  // It was valid when the input was read; a file that changed since gives a request that is
  // refused.
  return body == nullptr ? std::string()
                         : body->dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::unordered_map<std::string, bool> AnsweredIds(std::string_view text, std::size_t* whole_bytes) {
  std::unordered_map<std::string, bool> ids;
  *whole_bytes = 0;
  for (std::size_t end = 0; (end = text.find('\n', *whole_bytes)) != std::string_view::npos;) {
    const Json json = Json::parse(text.substr(*whole_bytes, end - *whole_bytes), nullptr, false);
    const Json* const id = Member(json, "custom_id");
    const Json* const response = Member(json, "response");
    if (id == nullptr || !id->is_string() || response == nullptr) {
      break;
    }
    const Json* const status = Member(*response, "status_code");
    ids[id->get<std::string>()] =
        status != nullptr && status->is_number_integer() && IsGoodStatus(status->get<int>());
    *whole_bytes = end + 1;
  }
  return ids;
}

}  // namespace inferd::api
