// SPDX-License-Identifier: Apache-2.0
#include "api/grpc/grpc_shared.h"

#include "api/core/limits.h"
#include "base/clock.h"
#include "base/log.h"

namespace inferd::api {

std::int64_t GrpcShared::NowNs() { return base::SteadyClock::Get().NowNs(); }

CallRecord::CallRecord(GrpcShared* shared,
                       grpc::ServerContextBase* context,
                       std::string_view method)
    : shared_(shared), method_(method), began_ns_(GrpcShared::NowNs()) {
  const auto& metadata = context->client_metadata();
  if (const auto it = metadata.find("x-request-id"); it != metadata.end()) {
    request_id_.assign(it->second.data(), std::min(it->second.size(), limits::kRequestIdBytes));
  }
  shared_->metrics.requests_open.fetch_add(1, std::memory_order_relaxed);
}

CallRecord::~CallRecord() {
  if (shared_->options.access_log) {
    log::Info("api",
              "gRPC {} {} {:.1f}ms id={}",
              method_,
              code_,
              static_cast<double>(GrpcShared::NowNs() - began_ns_) * 1e-6,
              request_id_.empty() ? "-" : request_id_);
  }
  shared_->metrics.requests_open.fetch_sub(1, std::memory_order_release);
}

}  // namespace inferd::api
