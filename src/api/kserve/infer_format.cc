// SPDX-License-Identifier: Apache-2.0
#include "api/kserve/infer_format.h"

#include "api/core/json_writer.h"
#include "api/kserve/endpoints.h"
#include "api/kserve/infer.h"

namespace inferd::api {

void InferFormat::AppendFull(std::span<const ReplyPiece> choices,
                             const Usage& usage,
                             std::string* out) {
  *out += R"({"model_name":)";
  AppendQuoted(model_, out);
  *out += R"(,"model_version":)";
  AppendQuoted(kModelVersion, out);
  if (!id_.empty()) {
    *out += R"(,"id":)";
    AppendQuoted(id_, out);
  }
  *out += R"(,"parameters":{"prompt_tokens":)";
  AppendInt(usage.prompt_tokens, out);
  *out += R"(,"completion_tokens":)";
  AppendInt(usage.completion_tokens, out);
  *out += R"(,"finish_reason":")";
  for (std::size_t i = 0; i < choices.size(); ++i) {
    *out += i > 0 ? "," : "";
    *out += FinishName(choices[i].finish);
  }
  *out += R"("},"outputs":[{"name":)";
  AppendQuoted(kTextOutput, out);
  *out += R"(,"datatype":"BYTES","shape":[)";
  AppendInt(static_cast<std::int64_t>(choices.size()), out);
  if (binary_) {
    std::string raw;
    for (const ReplyPiece& choice : choices) {
      AppendRawBytes(choice.text, &raw);
    }
    *out += R"(],"parameters":{"binary_data_size":)";
    AppendInt(static_cast<std::int64_t>(raw.size()), out);
    *out += "}}]}";
    json_bytes_ = out->size();
    *out += raw;
    return;
  }
  *out += R"(],"data":[)";
  for (std::size_t i = 0; i < choices.size(); ++i) {
    *out += i > 0 ? "," : "";
    AppendQuoted(choices[i].text, out);
  }
  *out += "]}]}";
}

std::vector<std::pair<std::string, std::string>> InferFormat::full_headers() const {
  if (!binary_) {
    return {};
  }
  return {{"Inference-Header-Content-Length", std::to_string(json_bytes_)}};
}

std::string InferFormat::FailureBody(const Error& error) const { return V2ErrorBody(error, {}); }

GenerateFormat::GenerateFormat(std::string_view model, std::string_view id) {
  common_ = "{";
  if (!id.empty()) {
    common_ += R"("id":)";
    AppendQuoted(id, &common_);
    common_ += ',';
  }
  common_ += R"("model_name":)";
  AppendQuoted(model, &common_);
  common_ += R"(,"model_version":)";
  AppendQuoted(kModelVersion, &common_);
  common_ += R"(,"text_output":)";
}

void GenerateFormat::AppendText(const ReplyPiece& piece, std::string* out) const {
  *out += common_;
  AppendQuoted(piece.text, out);
  if (piece.finish != leader::FinishReason::kNone) {
    *out += R"(,"finish_reason":)";
    AppendQuoted(FinishName(piece.finish), out);
  }
  *out += '}';
}

void GenerateFormat::AppendPiece(const ReplyPiece& piece, std::string* out) {
  *out += "data: ";
  AppendText(piece, out);
  *out += "\n\n";
}

void GenerateFormat::AppendFailure(const Error& error, std::string* out) {
  *out += "data: " + V2ErrorBody(error, {}) + "\n\n";
}

void GenerateFormat::AppendFull(std::span<const ReplyPiece> choices,
                                const Usage& /*usage*/,
                                std::string* out) {
  AppendText(choices.front(), out);
}

std::string GenerateFormat::FailureBody(const Error& error) const { return V2ErrorBody(error, {}); }

}  // namespace inferd::api
