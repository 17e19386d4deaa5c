// SPDX-License-Identifier: Apache-2.0
// A server-streaming call that generates.
#pragma once

#include "api/grpc/generation_call.h"

#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <utility>

namespace inferd::api {

template <class Message>
class StreamCall final : public GenerationCall, public grpc::ServerWriteReactor<Message> {
 public:
  using GenerationCall::GenerationCall;

  /// `make` gets the queue that its format fills and gives the function that prepares the call.
  template <class Make>
  static grpc::ServerWriteReactor<Message>* Start(GrpcShared* shared,
                                                  grpc::CallbackServerContext* context,
                                                  std::string_view method,
                                                  Make&& make) {
    auto call = std::make_shared<StreamCall>(shared, context, method);
    call->Begin(std::forward<Make>(make)(&call->queue_));
    return call.get();
  }

 private:
  bool TakeMessage() override {
    if (queue_.empty()) {
      return false;
    }
    current_ = std::move(queue_.front());
    queue_.pop_front();
    return true;
  }
  void StartWriting() override { this->StartWrite(&current_); }
  void EndCall(const grpc::Status& status) override { this->Finish(status); }
  void OnWriteDone(bool ok) override { OnWritten(ok); }
  void OnCancel() override { OnCancelled(); }
  void OnDone() override { Done(); }

  std::deque<Message> queue_;  // filled by the format, under the call's lock
  Message current_;            // being written
};

}  // namespace inferd::api
