// SPDX-License-Identifier: Apache-2.0
// gRPC settings that both ends share. Only rpc/*.cc include this (it needs grpcpp).
#pragma once

#include <grpcpp/grpcpp.h>

namespace inferd::rpc {

inline constexpr char kAuthMetadata[] = "inferd-auth";
/// Both ends must be of one build: the protocol has no compatibility promise inside a server.
inline constexpr char kBuild[] = "inferd 0.1.0 protocol 1";

/// A prompt of a million ids is 4 MB.
inline constexpr int kMaxMessageBytes = 64 << 20;
/// A dead link is noticed after at most the sum of the two. TCP sends again 0.2, 0.6, 1.4, 3 s
/// after what it lost: a link that is back after 2 s has answered within the timeout.
inline constexpr int kKeepaliveMs = 2000;
inline constexpr int kKeepaliveTimeoutMs = 5000;

inline void SetServerArguments(grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->SetMaxSendMessageSize(kMaxMessageBytes);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kKeepaliveMs / 2);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

inline grpc::ChannelArguments ClientArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return arguments;
}

}  // namespace inferd::rpc
