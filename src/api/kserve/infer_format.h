// SPDX-License-Identifier: Apache-2.0
// Answers of the Open Inference Protocol as JSON: tensors, and the generate extension's texts.
#pragma once

#include "api/core/reply_format.h"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inferd::api {

class InferFormat final : public UnstreamedFormat {
 public:
  /// `binary`: the texts follow the JSON as a binary tensor.
  InferFormat(std::string_view model, std::string_view id, bool binary)
      : model_(model), id_(id), binary_(binary) {}

  std::string_view full_content_type() const override {
    return binary_ ? "application/octet-stream" : "application/json";
  }
  std::vector<std::pair<std::string, std::string>> full_headers() const override;

  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;
  std::string FailureBody(const Error& error) const override;

 private:
  std::string model_;
  std::string id_;
  bool binary_;
  std::size_t json_bytes_ = 0;  // of the rendered answer
};

class GenerateFormat final : public ReplyFormat {
 public:
  GenerateFormat(std::string_view model, std::string_view id);

  void AppendOpening(const ReplyPiece& /*piece*/, std::string* /*out*/) override {}
  void AppendPiece(const ReplyPiece& piece, std::string* out) override;
  void AppendEnd(const Usage& /*usage*/, bool /*asked*/, std::string* /*out*/) override {}
  void AppendFailure(const Error& error, std::string* out) override;
  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;
  std::string FailureBody(const Error& error) const override;

 private:
  void AppendText(const ReplyPiece& piece, std::string* out) const;

  std::string common_;  // {"id":..,"model_name":..,"model_version":..,"text_output":
};

}  // namespace inferd::api
