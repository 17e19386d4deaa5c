// SPDX-License-Identifier: Apache-2.0
#include "api/grpc/grpc_shared.h"

#include "api/core/asker.h"
#include "api/core/limits.h"
#include "base/clock.h"
#include "base/log.h"

#include <array>
#include <optional>

namespace inferd::api {

std::int64_t GrpcShared::NowNs() { return base::SteadyClock::Get().NowNs(); }

namespace {

std::string_view Metadata(const grpc::ServerContextBase& context, const char* name) {
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find(name);
  return it == metadata.end() ? std::string_view()
                              : std::string_view(it->second.data(), it->second.size());
}

/// As of HTTP's headers. kInvalidArgument when it is not clear who asks.
Result<std::string> TenantIn(const grpc::ServerContextBase& context) {
  for (const char* const name : kAskerHeaders) {
    if (context.client_metadata().count(name) > 1) {
      return RepeatedHeader(name);
    }
  }
  std::array<std::optional<std::string_view>, kTenantHeaders.size()> tenants;
  for (std::size_t i = 0; i < tenants.size(); ++i) {
    if (context.client_metadata().count(kTenantHeaders[i]) != 0) {
      tenants[i] = Metadata(context, kTenantHeaders[i]);
    }
  }
  return AgreedTenant(tenants);
}

}  // namespace

Result<std::shared_ptr<tenant::Admission>> GrpcShared::Admit(const grpc::ServerContextBase& context,
                                                             tenant::Scope scope,
                                                             std::string_view method,
                                                             Fault* fault) const {
  if (gate == nullptr) {
    return std::shared_ptr<tenant::Admission>();
  }
  const auto tenant = TenantIn(context);
  if (!tenant.ok()) {
    fault->code = "invalid_tenant";
    return tenant.error();
  }
  std::string_view key = Metadata(context, "authorization");
  constexpr std::string_view kBearer = "Bearer ";
  key = key.starts_with(kBearer) ? key.substr(kBearer.size()) : Metadata(context, "x-api-key");
  const std::string operation = "grpc:" + std::string(method);
  tenant::Refusal refusal;
  auto admitted = gate->Admit({.key = key,
                               .scope = scope,
                               .operation = operation,
                               .request_id = Metadata(context, "x-request-id"),
                               .tenant = *tenant,
                               .weight = Metadata(context, kWeightHeader),
                               .objective = Metadata(context, kObjectiveHeader)},
                              &refusal);
  if (!admitted.ok()) {
    *fault = FaultOfGate(admitted.error(), refusal);
  }
  return admitted;
}

CallRecord::CallRecord(GrpcShared* shared,
                       grpc::ServerContextBase* context,
                       std::string_view method)
    : shared_(shared), method_(method), began_ns_(GrpcShared::NowNs()) {
  request_id_ = Metadata(*context, "x-request-id").substr(0, limits::kRequestIdBytes);
  const std::string_view session = Metadata(*context, "x-session-id");
  session_ = session.size() <= limits::kSessionIdBytes ? session : "";
  shared_->metrics.requests_open.fetch_add(1, std::memory_order_relaxed);
}

std::shared_ptr<OpenSpan> CallRecord::BeginSpan(const grpc::ServerContextBase& context) const {
  const std::string_view trace = Metadata(context, "traceparent");
  RequestSpan span;
  span.traceparent = trace;
  span.operation = "grpc:" + method_;
  span.request_id = request_id_;
  return OpenSpan::Begin(shared_->options.spans, std::move(span));
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
