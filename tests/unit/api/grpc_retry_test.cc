// SPDX-License-Identifier: Apache-2.0
// What a refused call says about coming back.
#include "grpc_fixture.h"
#include "inferd/v1/inference.grpc.pb.h"
#include "inferd/v1/status.pb.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

namespace inferd::api {
namespace {

class GrpcRetryTest : public GrpcTest {
 protected:
  grpc::Status Ask() {
    v1::CompletionRequest request;
    request.add_prompt("hi");
    v1::CompletionResponse response;
    context_ = CallContext();
    context_->AddMetadata("x-session-id", session_);
    return v1::Inference::NewStub(channel_)->Completion(context_.get(), request, &response);
  }
  std::string Reason() const { return Trailer(*context_, "x-inferd-rejected-reason"); }
  std::int64_t Trailed() const {
    const std::string text = Trailer(*context_, "retry-after-ms");
    return text.empty() ? -1 : std::strtoll(text.c_str(), nullptr, 10);
  }

  std::unique_ptr<grpc::ClientContext> context_;
  std::string session_ = "s1";
};

/// Of google.rpc.RetryInfo among the details; -1: there is none.
std::int64_t Detailed(const grpc::Status& status) {
  v1::StatusDetails details;
  if (!details.ParseFromString(status.error_details())) {
    return -1;
  }
  for (const google::protobuf::Any& any : details.details()) {
    v1::RetryInfo retry;
    if (any.type_url() == "type.googleapis.com/google.rpc.RetryInfo" &&
        retry.ParseFromString(any.value())) {
      EXPECT_EQ(details.code(), static_cast<int>(status.error_code()));
      EXPECT_EQ(details.message(), status.error_message());
      return retry.retry_delay().seconds() * 1000 + retry.retry_delay().nanos() / 1'000'000;
    }
  }
  return -1;
}

TEST_F(GrpcRetryTest, TheLoadsRefusalSaysWhenToComeBack) {
  StartServer();
  service_.FailNextSubmit(ResourceExhausted("full"), 2'500, "tokens");
  const grpc::Status status = Ask();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_GE(Trailed(), 2'500);
  EXPECT_LE(Trailed(), 2'500 + 625 + 250);
  EXPECT_EQ(Detailed(status), Trailed());
  EXPECT_EQ(Reason(), "tokens");
}

TEST_F(GrpcRetryTest, ASessionReachesTheEngine) {
  StartServer();
  EXPECT_TRUE(Ask().ok());
  EXPECT_EQ(service_.last()->session, "s1");
  session_ = std::string(257, 'x');
  EXPECT_TRUE(Ask().ok());
  EXPECT_EQ(service_.last()->session, "");
}

TEST_F(GrpcRetryTest, NotReadyMeansSoonAndABadRequestNever) {
  StartServer();
  service_.SetPhase(leader::Phase::kAsleep);
  const grpc::Status asleep = Ask();
  EXPECT_EQ(asleep.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_NE(asleep.error_message().find("asleep"), std::string::npos);
  EXPECT_EQ(Trailed(), 5'000);
  EXPECT_EQ(Reason(), "asleep");
  EXPECT_EQ(Detailed(asleep), 5'000);
  service_.SetPhase(leader::Phase::kReady);
  service_.FailNextSubmit(InvalidArgument("no"));
  const grpc::Status bad = Ask();
  EXPECT_EQ(bad.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Trailed(), -1);
  EXPECT_EQ(bad.error_details(), "");
  EXPECT_EQ(Reason(), "");
}

}  // namespace
}  // namespace inferd::api
