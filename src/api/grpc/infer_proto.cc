// SPDX-License-Identifier: Apache-2.0
#include "api/grpc/infer_proto.h"

#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

Json ParameterValue(const inference::InferParameter& parameter) {
  switch (parameter.parameter_choice_case()) {
    case inference::InferParameter::kBoolParam:
      return parameter.bool_param();
    case inference::InferParameter::kInt64Param:
      return parameter.int64_param();
    case inference::InferParameter::kStringParam:
      return parameter.string_param();
    case inference::InferParameter::kDoubleParam:
      return parameter.double_param();
    case inference::InferParameter::kUint64Param:
      return parameter.uint64_param();
    case inference::InferParameter::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return nullptr;
}

const char* Spell(bool value) { return value ? "true" : "false"; }

Result<std::vector<std::string>> Values(const inference::ModelInferRequest& request,
                                        int index,
                                        const std::string& path,
                                        Fault* fault) {
  const auto& input = request.inputs(index);
  std::vector<std::string> values;
  if (request.raw_input_contents_size() == 0) {
    for (const std::string& value : input.contents().bytes_contents()) {
      values.push_back(value);
    }
    for (const bool value : input.contents().bool_contents()) {
      values.emplace_back(Spell(value));
    }
    return values;
  }
  const std::string& raw = request.raw_input_contents(index);
  if (input.datatype() != "BOOL") {
    return SplitRawBytes(raw, path, fault);
  }
  for (const char value : raw.substr(0, 2)) {
    values.emplace_back(Spell(value != 0));
  }
  return values;
}

}  // namespace

Result<InferRequest> ReadInfer(const inference::ModelInferRequest& request, Fault* fault) {
  InferRequest read;
  if (request.raw_input_contents_size() != 0 &&
      request.raw_input_contents_size() != request.inputs_size()) {
    return FieldError(fault,
                      "raw_input_contents",
                      "raw_input_contents has {} entries for {} inputs",
                      request.raw_input_contents_size(),
                      request.inputs_size());
  }
  for (int i = 0; i < request.inputs_size(); ++i) {
    const auto& input = request.inputs(i);
    const std::string path = fmt::format("inputs[{}]", i);
    InferTensor tensor{.name = input.name(),
                       .datatype = input.datatype(),
                       .shape = {input.shape().begin(), input.shape().end()},
                       .values = {}};
    INFERD_ASSIGN(tensor.values, Values(request, i, path, fault));
    INFERD_TRY(TakeTensor(std::move(tensor), path, &read, fault));
  }
  for (const auto& output : request.outputs()) {
    if (output.name() != kTextOutput) {
      return FieldError(fault,
                        "outputs",
                        "The model has no output `{}`; it gives text_output",
                        output.name().substr(0, 100));
    }
  }
  for (const auto& [name, value] : request.parameters()) {
    TakeParameter(name, ParameterValue(value), &read);
  }
  return read;
}

InferReplyShape ShapeOf(const ServerContext& context, const inference::ModelInferRequest& request) {
  return {.model = request.model_name().empty() ? context.model.name() : request.model_name(),
          .id = request.id(),
          .raw = request.raw_input_contents_size() != 0};
}

void SetTexts(const InferReplyShape& shape,
              std::span<const std::string> texts,
              std::span<const std::string_view> finishes,
              inference::ModelInferResponse* response) {
  response->set_model_name(shape.model);
  response->set_model_version(std::string(kModelVersion));
  response->set_id(shape.id);
  auto* const output = response->add_outputs();
  output->set_name(std::string(kTextOutput));
  output->set_datatype("BYTES");
  output->add_shape(static_cast<std::int64_t>(texts.size()));
  std::string* const raw = shape.raw ? response->add_raw_output_contents() : nullptr;
  for (const std::string& text : texts) {
    if (raw != nullptr) {
      AppendRawBytes(text, raw);
    } else {
      output->mutable_contents()->add_bytes_contents(text);
    }
  }
  std::string joined;
  for (const std::string_view finish : finishes) {
    joined += joined.empty() ? "" : ",";
    joined += finish;
  }
  if (!joined.empty()) {
    (*response->mutable_parameters())["finish_reason"].set_string_param(joined);
  }
}

void InferProtoFormat::AppendPiece(const ReplyPiece& piece, std::string* /*out*/) {
  inference::ModelInferResponse response;
  const std::string text(piece.text);
  std::vector<std::string_view> finishes;
  if (piece.finish != leader::FinishReason::kNone) {
    finishes.push_back(FinishName(piece.finish));
  }
  SetTexts(shape_, {&text, 1}, finishes, &response);
  (*response.mutable_parameters())["index"].set_int64_param(piece.index);
  emit_(std::move(response));
}

void InferProtoFormat::AppendEnd(const Usage& /*usage*/,
                                 bool /*usage_asked*/,
                                 std::string* /*out*/) {}

void InferProtoFormat::AppendFull(std::span<const ReplyPiece> choices,
                                  const Usage& usage,
                                  std::string* /*out*/) {
  std::vector<std::string> texts;
  std::vector<std::string_view> finishes;
  for (const ReplyPiece& piece : choices) {
    texts.emplace_back(piece.text);
    finishes.push_back(FinishName(piece.finish));
  }
  SetTexts(shape_, texts, finishes, full_);
  auto& parameters = *full_->mutable_parameters();
  parameters["prompt_tokens"].set_int64_param(usage.prompt_tokens);
  parameters["completion_tokens"].set_int64_param(usage.completion_tokens);
}

}  // namespace inferd::api
