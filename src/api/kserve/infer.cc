// SPDX-License-Identifier: Apache-2.0
#include "api/kserve/infer.h"

#include "api/core/json_parse.h"
#include "api/core/limits.h"
#include "api/openai/completion_request.h"
#include "base/error.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

constexpr TensorInfo kInputs[] = {
    {kTextInput, "BYTES", false},
    {"stream", "BOOL", true},
    {"sampling_parameters", "BYTES", true},
    {"exclude_input_in_output", "BOOL", true},
};

/// These are texts whatever they spell.
bool IsText(std::string_view name) {
  return name == "user" || name == "safety_identifier" || name == "service_tier" ||
         name == "cache_salt" || name == "model";
}

/// "0.5", "true", "[1]": as JSON. Other texts: as they are.
Json Spelled(const std::string& text) {
  const bool may_be = !text.empty() && (text.front() == '[' || text == "true" || text == "false" ||
                                        text.front() == '-' || text.front() == '.' ||
                                        (text.front() >= '0' && text.front() <= '9'));
  if (may_be) {
    Json value = Json::parse(text, nullptr, false);
    if (!value.is_discarded()) {
      return value;
    }
  }
  return Json(text);
}

Result<> TakeSamplingParameters(const std::string& text,
                                const std::string& path,
                                InferRequest* request,
                                Fault* fault) {
  auto object = ParseJsonObject(text, fault);
  if (!object.ok()) {
    return FieldError(fault, path, "{} must hold one JSON object", path);
  }
  for (auto& [name, value] : object->items()) {
    TakeParameter(name, std::move(value), request);
  }
  return {};
}

}  // namespace

std::span<const TensorInfo> InferInputs() { return kInputs; }

Result<> CheckModelVersion(const ServerContext& context,
                           std::string_view name,
                           std::string_view version,
                           Fault* fault) {
  if (!name.empty() && !context.model.Answers(name)) {
    *fault = {"model_name", "model_not_found"};
    return NotFound("The model `{}` does not exist here; this server has `{}`",
                    name.substr(0, 100),
                    context.model.name());
  }
  if (!version.empty() && version != kModelVersion) {
    *fault = {"model_version", "model_not_found"};
    return NotFound(
        "The model has no version `{}`; it has {}", version.substr(0, 100), kModelVersion);
  }
  return {};
}

Result<std::vector<std::string>> SplitRawBytes(std::string_view raw,
                                               const std::string& path,
                                               Fault* fault) {
  std::vector<std::string> values;
  while (!raw.empty()) {
    std::uint32_t size = 0;
    if (raw.size() >= sizeof size) {
      std::memcpy(&size, raw.data(), sizeof size);  // little endian, as this server's hosts are
    }
    if (raw.size() < sizeof size || size > raw.size() - sizeof size) {
      return FieldError(
          fault, path, "{} is cut off: each value follows its size in four bytes", path);
    }
    if (values.size() == limits::kPrompts) {
      return FieldError(fault, path, "{} has more than {} values", path, limits::kPrompts);
    }
    values.emplace_back(raw.substr(sizeof size, size));
    raw.remove_prefix(sizeof size + size);
  }
  return values;
}

void AppendRawBytes(std::string_view value, std::string* raw) {
  const auto size = static_cast<std::uint32_t>(value.size());
  raw->append(reinterpret_cast<const char*>(&size), sizeof size);
  raw->append(value);
}

Result<> TakeTensor(InferTensor tensor,
                    const std::string& path,
                    InferRequest* request,
                    Fault* fault) {
  const auto* const known = std::find_if(
      std::begin(kInputs), std::end(kInputs), [&](const auto& k) { return k.name == tensor.name; });
  if (known == std::end(kInputs)) {
    return FieldError(fault,
                      path + ".name",
                      "The model has no input `{}`; it takes text_input (BYTES), and stream, "
                      "sampling_parameters and exclude_input_in_output",
                      tensor.name.substr(0, 100));
  }
  if (tensor.datatype != known->datatype) {
    return FieldError(fault,
                      path + ".datatype",
                      "{} must be {}, not {}",
                      tensor.name,
                      known->datatype,
                      tensor.datatype.substr(0, 20));
  }
  std::int64_t count = 1;
  for (const std::int64_t extent : tensor.shape) {
    const auto most = static_cast<std::int64_t>(limits::kPrompts);
    count = extent < 0 || extent > most ? most + 1 : std::min(count * extent, most + 1);
  }
  if (tensor.values.empty() || static_cast<std::int64_t>(tensor.values.size()) != count) {
    return FieldError(fault,
                      path + ".shape",
                      "The shape of {} does not go with its {} values (at least 1, at most {})",
                      tensor.name,
                      tensor.values.size(),
                      limits::kPrompts);
  }
  if (tensor.name == kTextInput) {
    request->prompts = std::move(tensor.values);
  } else if (tensor.name == "sampling_parameters") {
    return TakeSamplingParameters(tensor.values.front(), path, request, fault);
  } else {
    TakeParameter(tensor.name, Json(tensor.values.front() == "true"), request);
  }
  return {};
}

void TakeParameter(const std::string& name, Json value, InferRequest* request) {
  if (value.is_string() && !IsText(name)) {
    value = Spelled(value.get_ref<const std::string&>());
    // One stop text may look like a number.
    if (name == "stop" && !value.is_array()) {
      value = value.is_string() ? value : Json(value.dump());
    }
  }
  request->parameters[name] = std::move(value);
}

Result<GenerationSpec> PrepareInfer(const ServerContext& context,
                                    InferRequest request,
                                    bool stream,
                                    Fault* fault) {
  if (request.prompts.empty()) {
    return FieldError(fault, "text_input", "text_input (BYTES) is missing");
  }
  Json& body = request.parameters;
  for (const char* const ours : {"model", "prompt", "echo", "stream_options"}) {
    body.erase(ours);
  }
  INFERD_ASSIGN(const bool exclude, Fields(body, fault).BoolOr("exclude_input_in_output", true));
  body["prompt"] = std::move(request.prompts);
  body["echo"] = !exclude;
  body["stream"] = stream;
  auto spec = ParseCompletion(context, Fields(body, fault));
  if (fault->param.starts_with("prompt")) {
    fault->param = "text_input" + fault->param.substr(std::string_view("prompt").size());
  }
  return spec;
}

}  // namespace inferd::api
