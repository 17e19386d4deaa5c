// SPDX-License-Identifier: Apache-2.0
// Sends the KV events of one replica over ZeroMQ: a PUB socket for all, and a ROUTER socket that
// answers those who have missed some.
#pragma once

#include "inferd/result.h"
#include "leader/kv_events.h"

#include <cstdint>
#include <memory>

namespace inferd::leader {

/// Messages are [topic, sequence number (8 bytes, big endian), payload]; numbers count from 0 and a
/// batch that found no room takes one too, so that its loss shows. A replay request is
/// ["", first number]; the answer is ["", number, payload] for each batch kept from there on, then
/// ["", -1, ""]. Encoding and sending are done by the publisher's own thread.
class KvEventPublisher {
 public:
  virtual ~KvEventPublisher() = default;

  /// Opens the sockets of replica `replica`. kInvalidArgument: the address cannot be; otherwise it
  /// cannot be had, such as a port in use.
  static Result<std::unique_ptr<KvEventPublisher>> Open(const KvEventsOptions& options,
                                                        std::int32_t replica,
                                                        std::int32_t page_tokens);

  /// Thread-safe, never waits for a subscriber. False: max_queue_size batches wait already.
  virtual bool Publish(KvEventBatch batch) = 0;
  /// Sends what waits, for a second at most, and closes the sockets.
  virtual void Stop() = 0;
};

}  // namespace inferd::leader
