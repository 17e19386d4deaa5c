// SPDX-License-Identifier: Apache-2.0
// A gRPC call that generates, without its message types: from the request thread that prepares it
// over the host's thread that feeds it to the status it ends with. unary_call.h and stream_call.h
// are the two reactors around it.
//
// Threads: gRPC's (Begin, OnCancelled, OnWritten), one of the request pool (Work), the host's
// (OnProgress, OnEnd). Text that a slow client has not taken stays in the generation; what is
// rendered is at most what one write found there.
#pragma once

#include "api/core/error_map.h"
#include "api/core/generation_host.h"
#include "api/grpc/grpc_shared.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace inferd::api {

/// What a request thread has made of a call.
struct PreparedCall {
  std::unique_ptr<Generation> generation;
  std::vector<std::string> ids;  // that Abort takes
};

/// Runs on a request thread. The format of the generation has the call's messages as its output;
/// whatever it appends to the string is dropped.
using PrepareCall = std::function<Result<PreparedCall>(const ServerContext&, Fault*)>;

class GenerationCall : public GenerationListener,
                       public std::enable_shared_from_this<GenerationCall> {
 public:
  GenerationCall(GrpcShared* shared, grpc::CallbackServerContext* context, std::string_view method);

  /// Starts the call; keeps itself alive until Done().
  void Begin(PrepareCall prepare);

  bool OnProgress(Generation* generation, std::int64_t now_ms) override;
  void OnEnd(Generation* generation) override;

 protected:
  void OnCancelled();
  void OnWritten(bool ok);
  /// gRPC has forgotten the call.
  void Done();

  /// Streams: takes the next message that waits; false: none waits. Under the lock.
  virtual bool TakeMessage() { return false; }
  /// Streams: writes the message taken. One at a time.
  virtual void StartWriting() {}
  /// The last thing done to gRPC's side; called once, with no write under way.
  virtual void EndCall(const grpc::Status& status) = 0;

 private:
  void Work(PrepareCall* prepare);
  void EndWith(const Error& error, const Fault& fault);
  bool BehindForGood(const Generation& generation, std::int64_t now_ms);
  /// Ends the call when nothing is under way; unlocks.
  void EndIfQuiet(std::unique_lock<std::mutex> lock);

  GrpcShared* const shared_;
  grpc::CallbackServerContext* const context_;
  CallRecord record_;
  std::shared_ptr<GenerationCall> self_;

  std::mutex mutex_;  // guards all below
  GenerationHost::Ticket ticket_ = 0;
  std::vector<std::string> ids_;
  grpc::Status status_;
  std::int64_t write_began_ms_ = 0;
  std::string scratch_;
  bool cancelled_ = false;
  bool writing_ = false;
  bool waiting_ = false;  // OnProgress found a write under way
  bool broken_ = false;   // a write has failed
  bool ended_ = false;    // the generation is gone
  bool closed_ = false;   // EndCall was called
};

}  // namespace inferd::api
