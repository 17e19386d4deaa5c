// SPDX-License-Identifier: Apache-2.0
#include "api/grpc/vllm_format.h"

#include "api/openai/embedding_format.h"

#include <utility>
#include <variant>

namespace inferd::api {
namespace {

namespace pb = vllm::grpc::engine;

void AddLogprobs(std::span<const LogprobItem> items, pb::OutputLogProbs* out) {
  for (const LogprobItem& item : items) {
    out->add_token_logprobs(item.logprob);
    out->add_token_ids(static_cast<std::uint32_t>(item.token));
    pb::TopLogProbs* const top = out->add_top_logprobs();
    for (const auto& one : item.top) {
      top->add_values(one.logprob);
      top->add_token_ids(static_cast<std::uint32_t>(one.token));
    }
  }
}

}  // namespace

VllmFormat::VllmFormat(std::deque<pb::GenerateResponse>* queue,
                       bool chunks,
                       bool logprobs,
                       std::int32_t n,
                       std::uint32_t prompt_tokens)
    : queue_(queue),
      chunks_(chunks),
      logprobs_(logprobs),
      prompt_tokens_(prompt_tokens),
      complete_(static_cast<std::size_t>(n)),
      input_(static_cast<std::size_t>(n)) {}

void VllmFormat::AppendOpening(const ReplyPiece& piece, std::string* /*out*/) {
  if (piece.prompt == nullptr || !piece.prompt->scores_wanted || piece.prompt->ids.empty()) {
    return;
  }
  auto input = std::make_unique<pb::InputLogProbs>();
  input->add_token_logprobs();  // the first token follows nothing
  input->add_token_ids(static_cast<std::uint32_t>(piece.prompt->ids.front()));
  input->add_top_logprobs();
  for (const spec::SampledToken& score : piece.prompt->scores) {
    input->add_token_logprobs()->set_value(score.logprob);
    input->add_token_ids(static_cast<std::uint32_t>(score.token));
    pb::TopLogProbs* const top = input->add_top_logprobs();
    for (const auto& one : score.top) {
      top->add_values(one.logprob);
      top->add_token_ids(static_cast<std::uint32_t>(one.token));
    }
  }
  const auto index = static_cast<std::size_t>(piece.index);
  if (chunks_) {
    input_[index] = std::move(input);
  } else {
    *complete_[index].mutable_input_logprobs() = std::move(*input);
  }
}

void VllmFormat::AppendPiece(const ReplyPiece& piece, std::string* /*out*/) {
  pb::GenerateComplete& complete = complete_[static_cast<std::size_t>(piece.index)];
  complete.set_index(static_cast<std::uint32_t>(piece.index));
  for (const LogprobItem& item : piece.logprobs) {
    complete.add_output_ids(static_cast<std::uint32_t>(item.token));
  }
  if (logprobs_ && !chunks_) {
    AddLogprobs(piece.logprobs, complete.mutable_output_logprobs());
  }
  if (piece.finish != leader::FinishReason::kNone) {
    complete.set_finish_reason(std::string(FinishName(piece.finish)));
    if (const auto* const text = std::get_if<std::string>(piece.stop_reason)) {
      complete.set_matched_stop_str(*text);
    } else if (const auto* const token = std::get_if<std::int32_t>(piece.stop_reason)) {
      complete.set_matched_token_id(static_cast<std::uint32_t>(*token));
    }
  }
  if (!chunks_ || piece.logprobs.empty()) {
    return;
  }
  pb::GenerateStreamChunk* const chunk = queue_->emplace_back().mutable_chunk();
  for (const LogprobItem& item : piece.logprobs) {
    chunk->add_token_ids(static_cast<std::uint32_t>(item.token));
  }
  chunk->set_index(static_cast<std::uint32_t>(piece.index));
  chunk->set_prompt_tokens(prompt_tokens_);
  chunk->set_completion_tokens(static_cast<std::uint32_t>(complete.output_ids_size()));
  if (logprobs_) {
    AddLogprobs(piece.logprobs, chunk->mutable_output_logprobs());
  }
  if (auto input = std::move(input_[static_cast<std::size_t>(piece.index)])) {
    *chunk->mutable_input_logprobs() = std::move(*input);
  }
}

void VllmFormat::AppendEnd(const Usage& usage, bool /*usage_asked*/, std::string* /*out*/) {
  for (pb::GenerateComplete& complete : complete_) {
    complete.set_prompt_tokens(prompt_tokens_);
    complete.set_completion_tokens(static_cast<std::uint32_t>(complete.output_ids_size()));
    complete.set_cached_tokens(static_cast<std::uint32_t>(usage.cached_tokens));
    *queue_->emplace_back().mutable_complete() = std::move(complete);
  }
}

void VllmEmbedFormat::AppendFull(std::span<const ReplyPiece> choices,
                                 const Usage& usage,
                                 std::string* /*out*/) {
  const std::vector<float> values = NormalizedEmbedding(choices.front().embedding, 0);
  full_->mutable_embedding()->Assign(values.begin(), values.end());
  full_->set_embedding_dim(static_cast<std::uint32_t>(values.size()));
  full_->set_prompt_tokens(static_cast<std::uint32_t>(usage.prompt_tokens));
}

}  // namespace inferd::api
