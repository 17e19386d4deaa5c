// SPDX-License-Identifier: Apache-2.0
// One I/O thread: an Asio loop with its listening socket, connections, streams and scratch buffer.
// Nothing in it is locked: all is touched by this thread only, but for Post, Stop and the event
// inbox.
//
// Write path of a token: engine thread -> EventInbox -> [eventfd] -> Generation::OnEvent
// (detokenise, stop strings) -> Connection::Flush renders all that is pending into the scratch
// buffer and sends it directly. A connection owns wire bytes only after a short write; while it has
// some, text stays in the generation and goes out together later.
#pragma once

#include "api/core/generation.h"
#include "api/core/metrics.h"
#include "api/http/http_message.h"
#include "api/http/http_options.h"
#include "api/http/http_parser.h"
#include "api/http/listener.h"
#include "inferd/result.h"
#include "leader/inference_service.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace inferd::api {

/// Names one request of one connection of one I/O thread; stale keys are ignored.
struct RequestKey {
  std::uint64_t connection = 0;
  std::uint64_t serial = 0;
  friend bool operator==(const RequestKey&, const RequestKey&) = default;
};

class IoThread;
class RunningRequests;

/// Called on the I/O thread for each request; must not block. Answers by Respond or Start, at once
/// or by way of Post.
class Dispatcher : public LongBodyGate {
 public:
  virtual void Dispatch(IoThread* io, RequestKey key, HttpRequest request) = 0;
  /// New connections and keep-alive end after the current answer.
  virtual bool draining() const = 0;
  /// Where the generations of all I/O threads are registered.
  virtual RunningRequests* running() = 0;
};

class IoThread {
 public:
  /// `service`, `dispatcher` and `metrics` outlive the thread. `service` may call the inbox until
  /// it has stopped.
  IoThread(std::uint32_t index,
           const HttpOptions& options,
           Dispatcher* dispatcher,
           leader::InferenceService* service,
           Metrics* metrics);
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  /// Takes connections from this socket once it runs.
  Result<> Adopt(Listener listener);
  /// Returns after Stop.
  void Run();
  /// Any thread: closes everything and ends Run.
  void Stop();
  /// Any thread: runs `work` on this thread. For requests, not for tokens.
  void Post(std::move_only_function<void()> work);

  /// On this thread. `more`: header lines that go with the answer, each with its CRLF.
  void Respond(RequestKey key, HttpResponse response, std::string more = {});
  void Start(RequestKey key, std::unique_ptr<Generation> generation, std::string more = {});
  /// Ends a generation with what it has said so far.
  void Abort(RequestKey key);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace inferd::api
