// SPDX-License-Identifier: Apache-2.0
#include "leader/sequence_table.h"

#include <algorithm>
#include <utility>

namespace inferd::leader {
namespace {

FinishReason Convert(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kNone:
      return FinishReason::kNone;
    case engine::FinishReason::kStop:
      return FinishReason::kStop;
    case engine::FinishReason::kLength:
      return FinishReason::kLength;
    case engine::FinishReason::kAbort:
      return FinishReason::kCancelled;
    case engine::FinishReason::kError:
      return FinishReason::kError;
  }
  return FinishReason::kError;
}

}  // namespace

std::uint64_t SequenceTable::Add(const GenerateRequest& request, std::int64_t cost_tokens) {
  const std::uint64_t first = next_sequence_;
  const std::uint64_t key = next_stream_++;
  Stream stream{request.stream, request.sink, request.n, cost_tokens, {}};
  stream.holds = request.n > 1 && request.sampling.prompt_logprobs >= 0;
  for (std::int32_t choice = 0; choice < request.n; ++choice) {
    const std::uint64_t id = next_sequence_++;
    sequences_.emplace(id, Sequence{key, choice, {}, {}});
    stream.sequences.push_back(id);
  }
  by_name_[request.stream].push_back(key);
  streams_.emplace(key, std::move(stream));
  return first;
}

std::vector<std::uint64_t> SequenceTable::Find(StreamId stream, std::int32_t choice) const {
  std::vector<std::uint64_t> ids;
  const auto named = by_name_.find(stream);
  if (named == by_name_.end()) {
    return ids;
  }
  for (const std::uint64_t key : named->second) {
    const Stream& entry = streams_.at(key);
    for (std::size_t i = 0; i < entry.sequences.size(); ++i) {
      if (entry.sequences[i] != 0 && (choice < 0 || static_cast<std::size_t>(choice) == i)) {
        ids.push_back(entry.sequences[i]);
      }
    }
  }
  return ids;
}

std::vector<std::uint64_t> SequenceTable::All() const {
  std::vector<std::uint64_t> ids;
  ids.reserve(sequences_.size());
  for (const auto& [id, sequence] : sequences_) {
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

void SequenceTable::Stage(EventSink* sink, OutputEvent event) {
  auto batch = std::find_if(
      batches_.begin(), batches_.end(), [&](const Batch& b) { return b.sink == sink; });
  if (batch == batches_.end()) {
    batch = batches_.insert(batches_.end(), Batch{sink, {}});
  }
  batch->events.push_back(std::move(event));
}

void SequenceTable::Give(Stream* stream, OutputEvent event) {
  if (stream->holds && event.choice != 0) {
    stream->held.push_back(std::move(event));
    return;
  }
  Stage(stream->sink, std::move(event));
  stream->holds = false;
  for (OutputEvent& sibling : stream->held) {
    Stage(stream->sink, std::move(sibling));
  }
  stream->held.clear();
}

void SequenceTable::Take(std::vector<engine::TokenEvent>& events) {
  for (engine::TokenEvent& event : events) {
    const auto found = sequences_.find(event.id);
    if (found == sequences_.end()) {
      continue;
    }
    Sequence& sequence = found->second;
    for (spec::SampledToken& token : event.prompt_logprobs) {
      sequence.prompt_logprobs.push_back(std::move(token));
    }
    if (!event.embedding.empty()) {
      sequence.embedding = std::move(event.embedding);
    }
    const bool ends = event.finish != engine::FinishReason::kNone;
    if (event.token < 0 && !ends) {
      continue;  // Parts of what goes out with the first token or the end.
    }
    Stream& stream = streams_.at(sequence.stream);
    OutputEvent out;
    out.stream = stream.id;
    out.choice = sequence.choice;
    if (event.token >= 0) {
      out.token = spec::SampledToken{.token = event.token,
                                     .logprob = event.logprob,
                                     .rank = event.rank,
                                     .top = std::move(event.top)};
    }
    out.finish = Convert(event.finish);
    out.stop_token = event.finish == engine::FinishReason::kStop ? event.token : -1;
    out.cached_tokens = static_cast<std::int32_t>(event.num_cached_tokens);
    out.admitted_ns = event.admitted_ns;
    out.prompt_logprobs = std::move(sequence.prompt_logprobs);
    sequence.prompt_logprobs.clear();
    out.embedding = std::move(sequence.embedding);
    sequence.embedding.clear();
    out.error = std::move(event.error);
    Give(&stream, std::move(out));
    if (ends) {
      const Sequence ended = std::move(sequence);
      sequences_.erase(found);
      End(event.id, ended);
    }
  }
}

void SequenceTable::Fail(std::uint64_t id, const Error& error) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) {
    return;
  }
  const Sequence sequence = std::move(found->second);
  sequences_.erase(found);
  Stream& stream = streams_.at(sequence.stream);
  OutputEvent out;
  out.stream = stream.id;
  out.choice = sequence.choice;
  out.finish = FinishReason::kError;
  out.error = error;
  Give(&stream, std::move(out));
  End(id, sequence);
}

void SequenceTable::End(std::uint64_t id, const Sequence& sequence) {
  Stream& stream = streams_.at(sequence.stream);
  std::replace(stream.sequences.begin(), stream.sequences.end(), id, std::uint64_t{0});
  if (--stream.live > 0) {
    return;
  }
  const auto named = by_name_.find(stream.id);
  std::erase(named->second, sequence.stream);
  if (named->second.empty()) {
    by_name_.erase(named);
  }
  const std::int64_t cost = stream.cost_tokens;
  streams_.erase(sequence.stream);
  on_ended_(cost);
}

void SequenceTable::Publish() {
  for (Batch& batch : batches_) {
    if (!batch.events.empty()) {
      batch.sink->Publish(batch.events);
      batch.events.clear();
    }
  }
}

}  // namespace inferd::leader
