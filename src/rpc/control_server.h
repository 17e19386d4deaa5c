// SPDX-License-Identifier: Apache-2.0
// The leader's end of the control streams: listens on a Unix socket (local workers) and, for
// several hosts, on TCP with mutual TLS; checks the proof of the secret before it reads anything;
// turns streams into peers and messages.
#pragma once

#include "inferd/result.h"
#include "rpc/messages.h"

#include <cstdint>
#include <memory>
#include <string>

namespace inferd::rpc {

/// One connected worker or node agent. Thread-safe; shared between the stream's own thread and the
/// leader.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual const Hello& hello() const = 0;
  /// False when the stream is broken. Writes in call order. May block while a peer does not read:
  /// the leader's watchdog ends such a peer by Close and by killing its process.
  virtual bool Send(const ToWorker& message) = 0;
  /// Cancels the stream; OnClosed follows.
  virtual void Close() = 0;
  /// Within OnHello: the stream ends with this error, which the other side is told.
  virtual void Refuse(const Error& error) = 0;
};

/// What happens to peers. Called on the stream's own thread, for one peer always in this order:
/// OnHello, any number of OnMessage, OnClosed once. Must not block for long.
class PeerListener {
 public:
  virtual ~PeerListener() = default;
  virtual void OnHello(const std::shared_ptr<Peer>& peer) = 0;
  virtual void OnMessage(const std::shared_ptr<Peer>& peer, FromWorker message) = 0;
  virtual void OnClosed(const std::shared_ptr<Peer>& peer) = 0;
};

struct ControlServerOptions {
  std::string unix_path;    // socket file; its folder must be private (0700)
  std::string tcp_address;  // "10.0.0.1:7000"; empty: local workers only. Port 0 picks one.
  std::string secret;
};

class ControlServer {
 public:
  virtual ~ControlServer() = default;
  /// The TCP port in use, 0 without one.
  virtual int tcp_port() const = 0;
  /// Ends every stream and waits for the handlers, at most two seconds.
  virtual void Stop() = 0;
};

/// `listener` outlives the server.
Result<std::unique_ptr<ControlServer>> StartControlServer(const ControlServerOptions& options,
                                                          PeerListener* listener);

}  // namespace inferd::rpc
