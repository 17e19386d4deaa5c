// SPDX-License-Identifier: Apache-2.0
// SequenceTable: which sequence of the engine belongs to which choice of which stream, and the way
// back: token events of a step become output events, gathered per sink and published once.
#pragma once

#include "engine/request.h"
#include "leader/inference_service.h"

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

namespace inferd::leader {

/// Called once when the last choice of a request has ended, with the token cost it was admitted
/// with.
using RequestEnded = std::function<void(std::int64_t cost_tokens)>;

/// Owner: the replica's engine thread.
class SequenceTable {
 public:
  explicit SequenceTable(RequestEnded on_ended) : on_ended_(std::move(on_ended)) {}

  /// Registers a request of n choices; returns the sequence id of choice 0, the others follow by
  /// one.
  std::uint64_t Add(const GenerateRequest& request, std::int64_t cost_tokens);

  /// Ids of the live sequences of a stream's choice (-1: of all its choices).
  std::vector<std::uint64_t> Find(StreamId stream, std::int32_t choice) const;

  /// Stages the events for their sinks. Events of unknown ids are dropped.
  void Take(std::vector<engine::TokenEvent>& events);
  /// Stages an error for one sequence and forgets it.
  void Fail(std::uint64_t id, const Error& error);
  /// Ids of all live sequences.
  std::vector<std::uint64_t> All() const;

  /// Hands each sink what was staged for it.
  void Publish();

  bool Knows(std::uint64_t id) const { return sequences_.contains(id); }
  bool empty() const { return sequences_.empty(); }

 private:
  struct Stream {
    StreamId id;
    EventSink* sink = nullptr;
    std::int32_t live = 0;
    std::int64_t cost_tokens = 0;
    std::vector<std::uint64_t> sequences;  // by choice; 0: ended
    /// The first choice's first event carries the prompt's logprobs for all of them: until it is
    /// out, the events of its siblings wait in `held`.
    bool holds = false;
    std::vector<OutputEvent> held = {};
  };
  struct Sequence {
    std::uint64_t stream = 0;
    std::int32_t choice = 0;
    std::vector<spec::SampledToken> prompt_logprobs;  // gathered until the first token
    std::vector<float> embedding;                     // until the end
  };
  struct Batch {
    EventSink* sink = nullptr;
    std::vector<OutputEvent> events;
  };
  struct StreamIdHash {
    std::size_t operator()(const StreamId& id) const {
      return (static_cast<std::size_t>(id.io) << 48) ^ (static_cast<std::size_t>(id.slot) << 24) ^
             static_cast<std::size_t>(id.generation);
    }
  };

  void Stage(EventSink* sink, OutputEvent event);
  void Give(Stream* stream, OutputEvent event);
  void End(std::uint64_t id, const Sequence& sequence);

  const RequestEnded on_ended_;
  std::uint64_t next_sequence_ = 1;
  std::uint64_t next_stream_ = 1;
  std::unordered_map<std::uint64_t, Sequence> sequences_;
  std::unordered_map<std::uint64_t, Stream> streams_;
  std::unordered_map<StreamId, std::vector<std::uint64_t>, StreamIdHash> by_name_;
  std::vector<Batch> batches_;
};

}  // namespace inferd::leader
