// SPDX-License-Identifier: Apache-2.0
#include "api/core/error_map.h"

#include "api/http/error_response.h"
#include "base/error.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace inferd::api {
namespace {

struct Row {
  Code code;
  int status;
  const char* type;
};

class EveryCode : public testing::TestWithParam<Row> {};

TEST_P(EveryCode, HasStatusAndType) {
  const ErrorStatus status = StatusOf(GetParam().code);
  EXPECT_EQ(status.http_status, GetParam().status);
  EXPECT_EQ(status.type, GetParam().type);
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    EveryCode,
    testing::Values(Row{Code::kCancelled, 499, "cancelled_error"},
                    Row{Code::kUnknown, 500, "internal_server_error"},
                    Row{Code::kInvalidArgument, 400, "invalid_request_error"},
                    Row{Code::kDeadlineExceeded, 504, "timeout_error"},
                    Row{Code::kNotFound, 404, "not_found_error"},
                    Row{Code::kAlreadyExists, 409, "conflict_error"},
                    Row{Code::kPermissionDenied, 403, "permission_error"},
                    Row{Code::kResourceExhausted, 429, "rate_limit_error"},
                    Row{Code::kFailedPrecondition, 400, "invalid_request_error"},
                    Row{Code::kAborted, 409, "conflict_error"},
                    Row{Code::kOutOfRange, 400, "invalid_request_error"},
                    Row{Code::kUnimplemented, 400, "invalid_request_error"},
                    Row{Code::kInternal, 500, "internal_server_error"},
                    Row{Code::kUnavailable, 503, "service_unavailable_error"},
                    Row{Code::kDataLoss, 500, "internal_server_error"},
                    Row{Code::kUnauthenticated, 401, "authentication_error"}));

TEST(ErrorBody, HasOpenAiShape) {
  const auto body = nlohmann::json::parse(
      ErrorBody(InvalidArgument("a \"quoted\"\nline"), {"n", "invalid_value"}));
  EXPECT_EQ(body["error"]["message"], "a \"quoted\"\nline");
  EXPECT_EQ(body["error"]["type"], "invalid_request_error");
  EXPECT_EQ(body["error"]["param"], "n");
  EXPECT_EQ(body["error"]["code"], "invalid_value");
  const auto plain = nlohmann::json::parse(ErrorBody(Internal("x"), {}));
  EXPECT_TRUE(plain["error"]["param"].is_null());
  EXPECT_TRUE(plain["error"]["code"].is_null());
}

TEST(ErrorBody, TellsNoInternals) {
  EXPECT_EQ(ErrorBody(Internal("worker 3 at /run/x"), {}).find("worker 3"), std::string::npos);
  EXPECT_EQ(ErrorBody(DataLoss("checksum of /x"), {}).find("/x"), std::string::npos);
}

TEST(ErrorResponse, TellsWhenToTryAgain) {
  EXPECT_EQ(ErrorResponse(ResourceExhausted("full")).headers.at(0).first, "Retry-After");
  EXPECT_EQ(ErrorResponse(Unavailable("draining")).headers.at(0).first, "Retry-After");
  EXPECT_TRUE(ErrorResponse(InvalidArgument("no")).headers.empty());
  const Error aborted(Code::kAborted, "under way");
  EXPECT_EQ(ErrorResponse(aborted).headers.at(0),
            std::pair(std::string("X-Should-Retry"), std::string("false")));
  const auto never = ErrorResponse(ResourceExhausted("no"), {.retry_after_ms = -1}).headers;
  EXPECT_EQ(never.at(0), std::pair(std::string("X-Should-Retry"), std::string("false")));
}

}  // namespace
}  // namespace inferd::api
