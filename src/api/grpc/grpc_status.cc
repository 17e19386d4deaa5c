// SPDX-License-Identifier: Apache-2.0
#include "api/grpc/grpc_status.h"

#include <algorithm>
#include <string>

namespace inferd::api {
namespace {

constexpr std::size_t kMessageBytes = 2000;  // trailers have to fit into a client's limit of 8 KiB
constexpr std::size_t kValueBytes = 200;

/// Metadata holds printable ASCII only.
std::string Printable(const std::string& text) {
  std::string out = text.substr(0, kValueBytes);
  std::replace_if(out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

}  // namespace

grpc::Status ToStatus(const Error& error, const Fault& fault, grpc::ServerContextBase* context) {
  if (!fault.param.empty()) {
    context->AddTrailingMetadata("inferd-param", Printable(fault.param));
  }
  if (!fault.code.empty()) {
    context->AddTrailingMetadata("inferd-code", Printable(fault.code));
  }
  std::string message(PublicMessage(error));
  if (message.size() > kMessageBytes) {
    std::size_t end = kMessageBytes;
    while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xc0) == 0x80) {
      --end;  // not within a character
    }
    message.resize(end);
  }
  return {static_cast<grpc::StatusCode>(error.code()), message};
}

}  // namespace inferd::api
