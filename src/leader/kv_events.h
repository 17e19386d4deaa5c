// SPDX-License-Identifier: Apache-2.0
// KV events: what the prefix cache of a replica takes in and gives up, told to routers that send a
// request to the server that has its beginning. vLLM's wire format, so that what reads its events
// reads ours.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace inferd::leader {

/// --kv-events-config.
struct KvEventsOptions {
  bool enabled = false;
  /// ZeroMQ address, bound if it has a `*`, `::` or is ipc, else connected to. Replica i adds i to
  /// the port.
  std::string endpoint = "tcp://*:5557";
  std::string replay_endpoint;            // always bound; empty: no replay
  std::int64_t buffer_steps = 10'000;     // batches kept for replay
  std::int64_t buffer_bytes = 64 << 20;   // of their payloads; not a setting
  std::int64_t hwm = 100'000;             // messages kept for a slow subscriber
  std::int64_t max_queue_size = 100'000;  // batches that wait for the publisher
  std::string topic;                      // first frame of every message
  bool array_events = false;              // events as vLLM up to 0.23 wrote them
};

/// Blocks that follow each other.
struct KvBlocksStored {
  std::vector<std::uint64_t> hashes;
  std::optional<std::uint64_t> parent;  // of the first; none: it begins a prompt
  std::vector<std::int32_t> tokens;     // of all, hashes.size() * page size
  std::string salt;                     // empty: none
};
struct KvBlocksRemoved {
  std::vector<std::uint64_t> hashes;
};
struct KvAllCleared {};
using KvEvent = std::variant<KvBlocksStored, KvBlocksRemoved, KvAllCleared>;

/// Those of about one step.
struct KvEventBatch {
  double unix_seconds = 0;
  std::vector<KvEvent> events;
};

/// The payload of a message: msgpack of [unix_seconds, [event, ...], replica]. An event is a map
/// with its name as "type", or with `array_events` an array that begins with the name.
std::vector<std::uint8_t> EncodeKvEvents(const KvEventBatch& batch,
                                         std::int32_t replica,
                                         std::int32_t page_tokens,
                                         bool array_events);

/// The address of replica `replica`: the port goes up by it, a path gets the suffix _dpN.
/// kInvalidArgument: not an address of tcp or ipc, or the port is out of range.
Result<std::string> KvEndpointOf(const std::string& endpoint, std::int32_t replica);

}  // namespace inferd::leader
