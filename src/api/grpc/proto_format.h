// SPDX-License-Identifier: Apache-2.0
// How generations look in inferd.v1: messages in place of bytes. A stream's format appends to the
// call's queue, a whole answer's fills the call's response.
#pragma once

#include "api/core/reply_format.h"
#include "inferd/v1/inference.pb.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>

namespace inferd::api {

/// What is alike in all messages of an answer.
struct ProtoHead {
  std::string id;
  std::string model;
  std::int64_t created_s = 0;
  bool logprobs = false;
  std::shared_ptr<const text::Tokenizer> tokenizer;
};

class ChatProtoFormat final : public ReplyFormat {
 public:
  /// One of `full` and `stream`; both outlive the generation.
  ChatProtoFormat(ProtoHead head,
                  v1::ChatCompletionResponse* full,
                  std::deque<v1::ChatCompletionChunk>* stream)
      : head_(std::move(head)), full_(full), stream_(stream) {}

  void AppendOpening(const ReplyPiece& piece, std::string* out) override;
  void AppendPiece(const ReplyPiece& piece, std::string* out) override;
  void AppendEnd(const Usage& usage, bool usage_asked, std::string* out) override;
  void AppendFailure(const Error& /*error*/, std::string* /*out*/) override {}
  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;

 private:
  v1::ChatCompletionChunk* AddChunk();
  /// `streamed`: arguments of a call are pieces of their own; else they join the call before.
  void SetReply(const ReplyPiece& piece, bool streamed, v1::ChatReply* reply);

  ProtoHead head_;
  v1::ChatCompletionResponse* full_;
  std::deque<v1::ChatCompletionChunk>* stream_;
};

class CompletionProtoFormat final : public ReplyFormat {
 public:
  CompletionProtoFormat(ProtoHead head,
                        v1::CompletionResponse* full,
                        std::deque<v1::CompletionResponse>* stream)
      : head_(std::move(head)), full_(full), stream_(stream) {}

  void AppendOpening(const ReplyPiece& piece, std::string* out) override;
  void AppendPiece(const ReplyPiece& piece, std::string* out) override;
  void AppendEnd(const Usage& usage, bool usage_asked, std::string* out) override;
  void AppendFailure(const Error& /*error*/, std::string* /*out*/) override {}
  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;

 private:
  void SetHead(v1::CompletionResponse* response) const;
  void SetChoice(const ReplyPiece& piece, v1::CompletionChoice* choice) const;

  ProtoHead head_;
  v1::CompletionResponse* full_;
  std::deque<v1::CompletionResponse>* stream_;
};

/// Embeddings, never streamed.
class EmbedProtoFormat final : public UnstreamedFormat {
 public:
  /// `full` outlives the generation.
  EmbedProtoFormat(std::string model, std::size_t dimensions, v1::EmbedResponse* full)
      : model_(std::move(model)), dimensions_(dimensions), full_(full) {}

  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;

 private:
  std::string model_;
  std::size_t dimensions_;
  v1::EmbedResponse* full_;
};

void SetUsage(const Usage& usage, v1::Usage* out);

}  // namespace inferd::api
