// SPDX-License-Identifier: Apache-2.0
#include "api/grpc/proto_format.h"

#include "api/openai/embedding_format.h"

#include <variant>

namespace inferd::api {
namespace {

void SetToken(const ProtoHead& head, std::int32_t token, float logprob, v1::ScoredToken* out) {
  const text::TokenText text = text::MakeTokenText(*head.tokenizer, token);
  out->set_token(text.token);
  out->set_logprob(logprob);
  out->set_token_bytes(text.bytes.data(), text.bytes.size());
  out->set_token_id(token);
}

template <class Choice>
void SetLogprobs(const ProtoHead& head, std::span<const LogprobItem> items, Choice* choice) {
  if (!head.logprobs || items.empty()) {
    return;
  }
  for (const LogprobItem& item : items) {
    v1::Logprobs::Item* const out = choice->mutable_logprobs()->add_content();
    SetToken(head, item.token, item.known ? item.logprob : 0, out->mutable_chosen());
    for (const auto& top : item.top) {
      SetToken(head, top.token, top.logprob, out->add_top_logprobs());
    }
    out->set_text_offset(item.text_offset);
    out->set_known(item.known);
  }
}

void SetScore(const ProtoHead& head,
              std::int32_t token,
              float logprob,
              std::int32_t rank,
              v1::PromptLogprobs::Item* item) {
  v1::PromptLogprobs::Token* const out = item->add_tokens();
  out->set_token_id(token);
  out->set_logprob(logprob);
  out->set_rank(rank);
  out->set_decoded_token(text::MakeTokenText(*head.tokenizer, token).token);
}

void SetPromptScores(const ProtoHead& head, const PromptReport& prompt, v1::PromptLogprobs* out) {
  out->add_items();  // the first token follows nothing
  for (const spec::SampledToken& score : prompt.scores) {
    v1::PromptLogprobs::Item* const item = out->add_items();
    SetScore(head, score.token, score.logprob, score.rank, item);
    std::int32_t rank = 0;
    for (const auto& top : score.top) {
      ++rank;
      if (top.token != score.token) {
        SetScore(head, top.token, top.logprob, rank, item);
      }
    }
  }
}

/// `out`: the message that tells of the prompt, for `choice`.
template <class Message>
void SetPrompt(const ProtoHead& head, const ReplyPiece& piece, Message* out) {
  if (piece.prompt != nullptr && piece.prompt->ids_wanted) {
    const auto& ids = piece.prompt->ids;
    out->mutable_prompt_token_ids()->Assign(ids.begin(), ids.end());
  }
  if constexpr (requires { out->mutable_prompt_logprobs(); }) {
    if (piece.prompt != nullptr && piece.prompt->scores_wanted) {
      SetPromptScores(head, *piece.prompt, out->mutable_prompt_logprobs());
    }
  }
}

template <class Choice>
void SetIds(const ReplyPiece& piece, Choice* choice) {
  choice->mutable_token_ids()->Assign(piece.token_ids.begin(), piece.token_ids.end());
}

template <class Choice>
void SetFinish(const ReplyPiece& piece, bool tool_calls, Choice* choice) {
  if (piece.finish == leader::FinishReason::kNone) {
    return;
  }
  choice->set_finish_reason(tool_calls && piece.finish == leader::FinishReason::kStop
                                ? std::string("tool_calls")
                                : std::string(FinishName(piece.finish)));
  if (const auto* const text = std::get_if<std::string>(piece.stop_reason)) {
    choice->set_stop_text(*text);
  } else if (const auto* const token = std::get_if<std::int32_t>(piece.stop_reason)) {
    choice->set_stop_token_id(*token);
  }
}

}  // namespace

void SetUsage(const Usage& usage, v1::Usage* out) {
  out->set_prompt_tokens(usage.prompt_tokens);
  out->set_completion_tokens(usage.completion_tokens);
  out->set_total_tokens(usage.prompt_tokens + usage.completion_tokens);
  out->set_cached_tokens(usage.cached_tokens);
  out->set_reasoning_tokens(usage.reasoning_tokens);
}

// ---- chat

v1::ChatCompletionChunk* ChatProtoFormat::AddChunk() {
  v1::ChatCompletionChunk* const chunk = &stream_->emplace_back();
  chunk->set_id(head_.id);
  chunk->set_object("chat.completion.chunk");
  chunk->set_created(head_.created_s);
  chunk->set_model(head_.model);
  return chunk;
}

void ChatProtoFormat::SetReply(const ReplyPiece& piece, bool streamed, v1::ChatReply* reply) {
  reply->mutable_content()->append(piece.text);
  for (const text::OutputDelta& delta : piece.deltas) {
    switch (delta.kind) {
      case text::OutputDelta::Kind::kContent:
        reply->mutable_content()->append(delta.text);
        break;
      case text::OutputDelta::Kind::kReasoning:
        reply->mutable_reasoning_content()->append(delta.text);
        break;
      case text::OutputDelta::Kind::kToolCall: {
        v1::ToolCall* const call = reply->add_tool_calls();
        call->set_id(delta.id);
        call->set_type("function");
        call->set_index(delta.call);
        call->mutable_function()->set_name(delta.text);
        break;
      }
      case text::OutputDelta::Kind::kToolArguments: {
        if (streamed && (reply->tool_calls().empty() ||
                         reply->tool_calls(reply->tool_calls_size() - 1).index() != delta.call)) {
          reply->add_tool_calls()->set_index(delta.call);
        }
        if (!reply->tool_calls().empty()) {
          reply->mutable_tool_calls(reply->tool_calls_size() - 1)
              ->mutable_function()
              ->mutable_arguments()
              ->append(delta.text);
        }
        break;
      }
    }
  }
}

void ChatProtoFormat::AppendOpening(const ReplyPiece& piece, std::string* /*out*/) {
  v1::ChatCompletionChunk* const chunk = AddChunk();
  v1::ChunkChoice* const choice = chunk->add_choices();
  choice->set_index(piece.index);
  choice->mutable_delta()->set_role("assistant");
  SetPrompt(head_, piece, chunk);
  if (piece.usage != nullptr) {
    SetUsage(*piece.usage, chunk->mutable_usage());
  }
}

void ChatProtoFormat::AppendPiece(const ReplyPiece& piece, std::string* /*out*/) {
  v1::ChatCompletionChunk* const chunk = AddChunk();
  v1::ChunkChoice* const choice = chunk->add_choices();
  if (piece.usage != nullptr) {
    SetUsage(*piece.usage, chunk->mutable_usage());
  }
  choice->set_index(piece.index);
  SetIds(piece, choice);
  SetReply(piece, true, choice->mutable_delta());
  SetLogprobs(head_, piece.logprobs, choice);
  SetFinish(piece, piece.has_tool_calls, choice);
}

void ChatProtoFormat::AppendEnd(const Usage& usage, bool usage_asked, std::string* /*out*/) {
  if (usage_asked) {
    SetUsage(usage, AddChunk()->mutable_usage());
  }
}

void ChatProtoFormat::AppendFull(std::span<const ReplyPiece> choices,
                                 const Usage& usage,
                                 std::string* /*out*/) {
  full_->set_id(head_.id);
  full_->set_object("chat.completion");
  full_->set_created(head_.created_s);
  full_->set_model(head_.model);
  for (const ReplyPiece& piece : choices) {
    v1::ChatChoice* const choice = full_->add_choices();
    choice->set_index(piece.index);
    choice->mutable_message()->set_role("assistant");
    SetReply(piece, false, choice->mutable_message());
    SetLogprobs(head_, piece.logprobs, choice);
    SetFinish(piece, piece.has_tool_calls, choice);
    SetIds(piece, choice);
  }
  if (!choices.empty()) {
    SetPrompt(head_, choices.front(), full_);
  }
  SetUsage(usage, full_->mutable_usage());
}

// ---- completions

void CompletionProtoFormat::SetHead(v1::CompletionResponse* response) const {
  response->set_id(head_.id);
  response->set_object("text_completion");
  response->set_created(head_.created_s);
  response->set_model(head_.model);
}

void CompletionProtoFormat::SetChoice(const ReplyPiece& piece, v1::CompletionChoice* choice) const {
  choice->set_index(piece.index);
  choice->set_text(std::string(piece.text));
  SetLogprobs(head_, piece.logprobs, choice);
  SetFinish(piece, false, choice);
  SetIds(piece, choice);
  SetPrompt(head_, piece, choice);
}

void CompletionProtoFormat::AppendOpening(const ReplyPiece& piece, std::string* /*out*/) {
  if (piece.prompt != nullptr) {
    v1::CompletionResponse* const response = &stream_->emplace_back();
    SetHead(response);
    v1::CompletionChoice* const choice = response->add_choices();
    choice->set_index(piece.index);
    SetPrompt(head_, piece, choice);
  }
}

void CompletionProtoFormat::AppendPiece(const ReplyPiece& piece, std::string* /*out*/) {
  v1::CompletionResponse* const response = &stream_->emplace_back();
  SetHead(response);
  SetChoice(piece, response->add_choices());
  if (piece.usage != nullptr) {
    SetUsage(*piece.usage, response->mutable_usage());
  }
}

void CompletionProtoFormat::AppendEnd(const Usage& usage, bool usage_asked, std::string* /*out*/) {
  if (usage_asked) {
    v1::CompletionResponse* const response = &stream_->emplace_back();
    SetHead(response);
    SetUsage(usage, response->mutable_usage());
  }
}

void CompletionProtoFormat::AppendFull(std::span<const ReplyPiece> choices,
                                       const Usage& usage,
                                       std::string* /*out*/) {
  SetHead(full_);
  for (const ReplyPiece& piece : choices) {
    SetChoice(piece, full_->add_choices());
  }
  SetUsage(usage, full_->mutable_usage());
}

// ---- embeddings

void EmbedProtoFormat::AppendFull(std::span<const ReplyPiece> choices,
                                  const Usage& usage,
                                  std::string* /*out*/) {
  full_->set_object("list");
  full_->set_model(model_);
  for (const ReplyPiece& piece : choices) {
    const std::vector<float> values = NormalizedEmbedding(piece.embedding, dimensions_);
    v1::Embedding* const embedding = full_->add_data();
    embedding->set_index(piece.index);
    embedding->mutable_embedding()->Assign(values.begin(), values.end());
  }
  SetUsage(usage, full_->mutable_usage());
}

}  // namespace inferd::api
