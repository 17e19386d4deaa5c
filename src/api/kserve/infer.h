// SPDX-License-Identifier: Apache-2.0
// What the two transports of the Open Inference Protocol share: a request in plain form, filled
// from its tensors and parameters, and the way from it to a generation.
#pragma once

#include "api/core/context.h"
#include "api/core/fields.h"
#include "api/core/generation.h"
#include "inferd/result.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

/// The only version of the model.
inline constexpr std::string_view kModelVersion = "1";
/// How a generated text is called, and what goes in.
inline constexpr std::string_view kTextInput = "text_input";
inline constexpr std::string_view kTextOutput = "text_output";

/// One input tensor. BYTES values are texts; BOOL values are "true" or "false".
struct InferTensor {
  std::string name;
  std::string datatype;
  std::vector<std::int64_t> shape;
  std::vector<std::string> values;
};

struct InferRequest {
  std::vector<std::string> prompts;
  nlohmann::ordered_json parameters = nlohmann::ordered_json::object();
};

/// What a model takes and gives, for metadata.
struct TensorInfo {
  std::string_view name;
  std::string_view datatype;
  bool optional;
};
std::span<const TensorInfo> InferInputs();

/// 404 for another model or version. Empty: any.
Result<> CheckModelVersion(const ServerContext& context,
                           std::string_view name,
                           std::string_view version,
                           Fault* fault);

/// BYTES in raw form: each value behind its size in four bytes, little endian.
Result<std::vector<std::string>> SplitRawBytes(std::string_view raw,
                                               const std::string& path,
                                               Fault* fault);
void AppendRawBytes(std::string_view value, std::string* raw);

/// Takes one tensor: text_input, or one of those that carry parameters as Triton's backends do.
Result<> TakeTensor(InferTensor tensor,
                    const std::string& path,
                    InferRequest* request,
                    Fault* fault);

/// Takes one parameter. Texts that spell a number, a boolean or a list stand for it, as some
/// clients have texts only.
void TakeParameter(const std::string& name, nlohmann::ordered_json value, InferRequest* request);

/// All of the generation but for its format.
Result<GenerationSpec> PrepareInfer(const ServerContext& context,
                                    InferRequest request,
                                    bool stream,
                                    Fault* fault);

}  // namespace inferd::api
