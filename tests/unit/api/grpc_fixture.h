// SPDX-License-Identifier: Apache-2.0
// A gRPC server over loopback with an engine that recites, and a channel to it.
#pragma once

#include "api/grpc/grpc_server.h"
#include "fake_service.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

namespace inferd::api {

/// A client context with a deadline, so that a call that hangs fails its test.
inline std::unique_ptr<grpc::ClientContext> CallContext(int seconds = 20) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
  return context;
}

/// A value of the trailing metadata; empty when it is not there.
inline std::string Trailer(const grpc::ClientContext& context, const std::string& key) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto it = metadata.find(key);
  return it == metadata.end() ? "" : std::string(it->second.data(), it->second.size());
}

class GrpcTest : public testing::Test {
 protected:
  void StartServer(GrpcOptions options = {},
                   tenant::Gate* gate = nullptr,
                   std::shared_ptr<const ServedModel> model = TestModel()) {
    options.port = 0;
    options.access_log = false;
    auto started = GrpcServer::Start(options, std::move(model), &service_, &metrics_, gate);
    ASSERT_TRUE(started.ok()) << started.error().message();
    server_ = *std::move(started);
    channel_ = NewChannel();
  }
  /// Each with a connection of its own.
  std::shared_ptr<grpc::Channel> NewChannel(int max_receive_bytes = 4 << 20) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // what is not read does not pile up here
    arguments.SetMaxReceiveMessageSize(max_receive_bytes);
    return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server_->port()),
                                     grpc::InsecureChannelCredentials(),
                                     arguments);
  }
  void TearDown() override {
    channel_.reset();
    if (server_ != nullptr) {
      server_->Stop();
    }
    service_.Stop();
  }

  FakeInferenceService service_;  // outlives the server's use of it
  Metrics metrics_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace inferd::api
