// SPDX-License-Identifier: Apache-2.0
// A generation as VllmEngine's messages: ids of new tokens, and at the end one GenerateComplete for
// each choice.
#pragma once

#include "api/core/reply_format.h"
#include "vllm/vllm_engine.pb.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace inferd::api {

class VllmFormat final : public ReplyFormat {
 public:
  /// `chunks`: the client wants new tokens as they come.
  VllmFormat(std::deque<vllm::grpc::engine::GenerateResponse>* queue,
             bool chunks,
             bool logprobs,
             std::int32_t n,
             std::uint32_t prompt_tokens);

  void AppendOpening(const ReplyPiece& piece, std::string* out) override;
  void AppendPiece(const ReplyPiece& piece, std::string* out) override;
  void AppendEnd(const Usage& usage, bool usage_asked, std::string* out) override;
  void AppendFailure(const Error& /*error*/, std::string* /*out*/) override {}
  void AppendFull(std::span<const ReplyPiece> /*choices*/,
                  const Usage& /*usage*/,
                  std::string* /*out*/) override {}  // the call is always a stream

 private:
  std::deque<vllm::grpc::engine::GenerateResponse>* queue_;
  bool chunks_;
  bool logprobs_;
  std::uint32_t prompt_tokens_;
  std::vector<vllm::grpc::engine::GenerateComplete> complete_;  // [n]
  /// [n]: what the choice's first chunk tells of the prompt.
  std::vector<std::unique_ptr<vllm::grpc::engine::InputLogProbs>> input_;
};

class VllmEmbedFormat final : public UnstreamedFormat {
 public:
  explicit VllmEmbedFormat(vllm::grpc::engine::EmbedResponse* full) : full_(full) {}

  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;

 private:
  vllm::grpc::engine::EmbedResponse* full_;
};

}  // namespace inferd::api
