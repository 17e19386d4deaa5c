// SPDX-License-Identifier: Apache-2.0
// POST /v2/models/{name}[/versions/{version}]/infer, /generate and /generate_stream.
#include "api/core/json_parse.h"
#include "api/kserve/endpoints.h"
#include "api/kserve/infer.h"
#include "api/kserve/infer_format.h"
#include "api/kserve/v2_path.h"
#include "base/error.h"

#include <charconv>
#include <string>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

Result<> TakeParameters(const Json& from,
                        const std::string& path,
                        InferRequest* request,
                        Fault* fault) {
  if (!from.is_object()) {
    return FieldError(fault, path, "{} must be an object, not {}", path, from.type_name());
  }
  for (const auto& [name, value] : from.items()) {
    TakeParameter(name, value, request);
  }
  return {};
}

/// The JSON part of the body, and the binary tensors behind it.
struct Body {
  std::string_view json;
  std::string_view binary;
};

Result<Body> SplitBody(const HttpRequest& request, Fault* fault) {
  const std::string& length = request.inference_header_length;
  if (length.empty()) {
    return Body{request.body, {}};
  }
  std::size_t bytes = 0;
  const char* const end = length.data() + length.size();
  if (std::from_chars(length.data(), end, bytes).ptr != end || bytes > request.body.size()) {
    return FieldError(fault,
                      "Inference-Header-Content-Length",
                      "Inference-Header-Content-Length is {}, but the body has {} bytes",
                      length,
                      request.body.size());
  }
  const std::string_view body = request.body;
  return Body{body.substr(0, bytes), body.substr(bytes)};
}

/// Values of a JSON tensor; rows of rows are one list.
Result<> FlattenData(const Json& data,
                     const std::string& path,
                     std::vector<std::string>* values,
                     Fault* fault) {
  if (data.is_array()) {
    for (const Json& item : data) {
      INFERD_TRY(FlattenData(item, path, values, fault));
    }
    return {};
  }
  if (!data.is_string() && !data.is_boolean()) {
    return FieldError(fault, path, "{} must hold strings or booleans", path);
  }
  values->push_back(data.is_string() ? data.get<std::string>() : data.dump());
  return {};
}

Result<std::vector<std::string>> TensorValues(const Fields& input,
                                              const std::string& datatype,
                                              std::string_view* binary) {
  Fault* const fault = input.fault();
  std::int64_t size = -1;
  if (const Json* const parameters = input.Find("parameters"); parameters != nullptr) {
    if (!parameters->is_object()) {
      return FieldError(fault, input.Path("parameters"), "parameters must be an object");
    }
    INFERD_ASSIGN(const auto given,
                  Fields(*parameters, fault, input.Path("parameters."))
                      .Int({"binary_data_size", 0, static_cast<std::int64_t>(binary->size())}));
    size = given.value_or(-1);
  }
  if (size < 0) {
    const Json* const data = input.Find("data");
    if (data == nullptr) {
      return FieldError(fault, input.Path("data"), "{} is missing", input.Path("data"));
    }
    std::vector<std::string> values;
    INFERD_TRY(FlattenData(*data, input.Path("data"), &values, fault));
    return values;
  }
  const std::string_view raw = binary->substr(0, static_cast<std::size_t>(size));
  binary->remove_prefix(raw.size());
  if (datatype != "BOOL") {
    return SplitRawBytes(raw, input.Path("data"), fault);
  }
  std::vector<std::string> values;
  for (const char value : raw.substr(0, 2)) {
    values.emplace_back(value != 0 ? "true" : "false");
  }
  return values;
}

Result<InferRequest> ReadInputs(const Fields& fields, std::string_view binary) {
  Fault* const fault = fields.fault();
  InferRequest read;
  const Json* const inputs = fields.Find("inputs");
  if (inputs == nullptr || !inputs->is_array()) {
    return FieldError(fault, "inputs", "inputs must be a list of tensors");
  }
  for (std::size_t i = 0; i < inputs->size(); ++i) {
    const std::string path = fmt::format("inputs[{}]", i);
    const Json& given = (*inputs)[i];
    if (!given.is_object()) {
      return FieldError(fault, path, "{} must be an object, not {}", path, given.type_name());
    }
    const Fields input(given, fault, path + ".");
    InferTensor tensor;
    INFERD_ASSIGN(const auto name, input.String("name"));
    INFERD_ASSIGN(const auto datatype, input.String("datatype"));
    tensor.name = name.value_or("");
    tensor.datatype = datatype.value_or("");
    const Json* const shape = input.Find("shape");
    if (shape == nullptr || !shape->is_array() || shape->size() > 8) {
      return FieldError(fault, path + ".shape", "{}.shape must be a list of sizes", path);
    }
    for (const Json& extent : *shape) {
      INFERD_ASSIGN(const auto size,
                    ToInt(extent, {"shape", 0, limits::kInt32Max}, path + ".shape", fault));
      tensor.shape.push_back(size);
    }
    INFERD_ASSIGN(tensor.values, TensorValues(input, tensor.datatype, &binary));
    INFERD_TRY(TakeTensor(std::move(tensor), path, &read, fault));
  }
  return read;
}

/// A boolean among the `parameters` of an object; absent: `fallback`.
Result<bool> FlagOf(const Fields& fields, std::string_view name, bool fallback) {
  const Json* const parameters = fields.Find("parameters");
  if (parameters == nullptr || !parameters->is_object()) {
    return fallback;
  }
  return Fields(*parameters, fields.fault(), fields.Path("parameters.")).BoolOr(name, fallback);
}

/// Whether the answer is to come as a binary tensor: what is said of the output goes before what is
/// said of the request.
Result<bool> WantsBinary(const Fields& fields) {
  Fault* const fault = fields.fault();
  INFERD_ASSIGN(bool binary, FlagOf(fields, "binary_data_output", false));
  const Json* const outputs = fields.Find("outputs");
  if (outputs == nullptr) {
    return binary;
  }
  if (!outputs->is_array()) {
    return FieldError(fault, "outputs", "outputs must be a list, not {}", outputs->type_name());
  }
  for (std::size_t i = 0; i < outputs->size(); ++i) {
    const std::string path = fmt::format("outputs[{}]", i);
    const Json& output = (*outputs)[i];
    if (!output.is_object() || !output.contains("name") || output["name"] != kTextOutput) {
      return FieldError(fault, path, "{} must name text_output, the model's only output", path);
    }
    INFERD_ASSIGN(binary, FlagOf(Fields(output, fault, path + "."), "binary_data", binary));
  }
  return binary;
}

Result<Outcome> Infer(const ServerContext& context,
                      const HttpRequest& request,
                      const V2Path& path,
                      Fault* fault) {
  INFERD_ASSIGN(const Body body, SplitBody(request, fault));
  INFERD_ASSIGN(const Json json, ParseJsonObject(body.json, fault));
  const Fields fields(json, fault);
  INFERD_ASSIGN(InferRequest read, ReadInputs(fields, body.binary));
  INFERD_ASSIGN(const bool binary, WantsBinary(fields));
  if (const Json* const parameters = fields.Find("parameters")) {
    INFERD_TRY(TakeParameters(*parameters, "parameters", &read, fault));
  }
  INFERD_ASSIGN(const auto id, fields.String("id"));
  INFERD_ASSIGN(GenerationSpec spec, PrepareInfer(context, std::move(read), false, fault));
  spec.format = std::make_unique<InferFormat>(path.name, id.value_or(""), binary);
  return Outcome(std::make_unique<Generation>(std::move(spec)));
}

Result<Outcome> Generate(const ServerContext& context,
                         const HttpRequest& request,
                         const V2Path& path,
                         Fault* fault) {
  INFERD_ASSIGN(const Json json, ParseJsonObject(request.body, fault));
  const Fields fields(json, fault);
  INFERD_ASSIGN(auto text, fields.String("text_input"));
  if (!text) {
    return FieldError(fault, "text_input", "text_input is missing");
  }
  InferRequest read;
  read.prompts.push_back(*std::move(text));
  for (const auto& [name, value] : json.items()) {
    if (name != "text_input" && name != "parameters" && name != "id") {
      TakeParameter(name, value, &read);
    }
  }
  if (const Json* const parameters = fields.Find("parameters")) {
    INFERD_TRY(TakeParameters(*parameters, "parameters", &read, fault));
  }
  INFERD_ASSIGN(const auto id, fields.String("id"));
  const bool stream = path.action == "generate_stream";
  INFERD_ASSIGN(GenerationSpec spec, PrepareInfer(context, std::move(read), stream, fault));
  if (!stream && spec.n != 1) {
    return FieldError(fault, "n", "generate gives one text; use infer for n = {}", spec.n);
  }
  spec.format = std::make_unique<GenerateFormat>(path.name, id.value_or(""));
  return Outcome(std::make_unique<Generation>(std::move(spec)));
}

}  // namespace

Result<Outcome> V2ModelPost(const ServerContext& context,
                            const HttpRequest& request,
                            Fault* fault) {
  const V2Path path = ParseV2Path(request.path, "/v2/models/");
  INFERD_TRY(CheckModelVersion(context, path.name, path.version, fault));
  if (path.action == "infer") {
    return Infer(context, request, path, fault);
  }
  if (path.action.starts_with("generate")) {
    return Generate(context, request, path, fault);
  }
  return NotFound("There is nothing to post to at {}", request.path.substr(0, 100));
}

}  // namespace inferd::api
