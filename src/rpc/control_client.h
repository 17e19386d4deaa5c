// SPDX-License-Identifier: Apache-2.0
// A worker's or node agent's end of its control stream.
#pragma once

#include "inferd/result.h"
#include "rpc/messages.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace inferd::rpc {

struct ControlClientOptions {
  /// "unix:/path/of/socket" or "host:port" (mutual TLS).
  std::string leader;
  std::string secret;
  std::chrono::milliseconds connect_deadline{10'000};
};

/// One stream. Send is thread-safe; Receive belongs to one thread.
class ControlClient {
 public:
  virtual ~ControlClient() = default;
  /// False when the stream is broken.
  virtual bool Send(const FromWorker& message) = 0;
  /// The next message, or an error when the stream has ended (kUnavailable; kUnauthenticated: wrong
  /// secret).
  virtual Result<ToWorker> Receive() = 0;
  /// Makes Receive return; thread-safe.
  virtual void Close() = 0;
};

/// Connects, proves the secret and sends `hello` (its build is filled in here).
Result<std::unique_ptr<ControlClient>> Attach(const ControlClientOptions& options, Hello hello);

}  // namespace inferd::rpc
