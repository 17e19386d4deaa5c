// SPDX-License-Identifier: Apache-2.0
// A call of any method with any bytes, for what no stub would send.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace inferd::api {

struct RawAnswer {
  grpc::Status status;
  std::vector<std::string> messages;
};

/// One call, step by step; every step waits for its end.
class RawCall {
 public:
  RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method)
      : stub_(channel) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    stream_ = stub_.PrepareCall(&context_, method, &queue_);
    stream_->StartCall(this);
    Wait();
  }
  ~RawCall() {
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  RawCall(const RawCall&) = delete;
  RawCall& operator=(const RawCall&) = delete;

  bool Write(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    stream_->Write(grpc::ByteBuffer(&slice, 1), this);
    return Wait();
  }
  void WritesDone() {
    stream_->WritesDone(this);
    Wait();
  }
  bool Read(std::string* bytes) {
    grpc::ByteBuffer buffer;
    stream_->Read(&buffer, this);
    if (!Wait()) {
      return false;
    }
    std::vector<grpc::Slice> slices;
    bytes->clear();
    if (buffer.Dump(&slices).ok()) {
      for (const grpc::Slice& slice : slices) {
        bytes->append(reinterpret_cast<const char*>(slice.begin()), slice.size());
      }
    }
    return true;
  }
  void Cancel() { context_.TryCancel(); }
  grpc::Status Finish() {
    grpc::Status status;
    stream_->Finish(&status, this);
    Wait();
    return status;
  }

 private:
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

/// Sends one message and reads to the end.
inline RawAnswer CallRaw(const std::shared_ptr<grpc::Channel>& channel,
                         const std::string& method,
                         const std::string& bytes) {
  RawCall call(channel, method);
  RawAnswer answer;
  if (call.Write(bytes)) {
    call.WritesDone();
  }
  std::string message;
  while (call.Read(&message)) {
    answer.messages.push_back(message);
  }
  answer.status = call.Finish();
  return answer;
}

}  // namespace inferd::api
