// SPDX-License-Identifier: Apache-2.0
// The Open Inference Protocol's messages: from a request to its plain form, and answers.
#pragma once

#include "api/core/error_map.h"
#include "api/core/reply_format.h"
#include "api/kserve/infer.h"
#include "inferd/result.h"
#include "kserve/grpc_predict_v2.pb.h"

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

Result<InferRequest> ReadInfer(const inference::ModelInferRequest& request, Fault* fault);

/// How the answer to a request looks: its id, and where its texts go.
struct InferReplyShape {
  std::string model;
  std::string id;
  bool raw = false;  // the request's tensors were raw
};
InferReplyShape ShapeOf(const ServerContext& context, const inference::ModelInferRequest& request);

/// Fills a response with text_output of [texts] (in order of choices) and their finish reasons.
void SetTexts(const InferReplyShape& shape,
              std::span<const std::string> texts,
              std::span<const std::string_view> finishes,
              inference::ModelInferResponse* response);

/// Whole answers fill `full`; each piece of a stream goes to `emit`.
class InferProtoFormat final : public ReplyFormat {
 public:
  using Emit = std::function<void(inference::ModelInferResponse)>;
  InferProtoFormat(InferReplyShape shape, inference::ModelInferResponse* full, Emit emit)
      : shape_(std::move(shape)), full_(full), emit_(std::move(emit)) {}

  void AppendOpening(const ReplyPiece& /*piece*/, std::string* /*out*/) override {}
  void AppendPiece(const ReplyPiece& piece, std::string* out) override;
  void AppendEnd(const Usage& usage, bool usage_asked, std::string* out) override;
  void AppendFailure(const Error& /*error*/, std::string* /*out*/) override {}
  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;

 private:
  InferReplyShape shape_;
  inference::ModelInferResponse* full_;
  Emit emit_;
};

}  // namespace inferd::api
