// SPDX-License-Identifier: Apache-2.0
#include "api/grpc/otlp_exporter.h"

#include "api/grpc/otlp_span.h"
#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "inferd/version.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/rpc_method.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <random>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kMethod = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
constexpr int kTries = 3;
constexpr std::size_t kRandomBytes = 24;

struct Target {
  std::string address;
  bool tls = false;
};

Result<Target> ParseEndpoint(const std::string& endpoint) {
  Target target;
  std::string_view rest = endpoint;
  for (const std::string_view scheme : {"https://", "http://", "grpc://"}) {
    if (rest.starts_with(scheme)) {
      target.tls = scheme == "https://";
      rest.remove_prefix(scheme.size());
      break;
    }
  }
  rest = rest.substr(0, rest.find('/'));
  const std::size_t colon = rest.rfind(':');
  if (colon == 0 || colon == std::string_view::npos || colon + 1 == rest.size() ||
      !std::all_of(rest.begin() + static_cast<std::ptrdiff_t>(colon) + 1, rest.end(), [](char c) {
        return c >= '0' && c <= '9';
      })) {
    return InvalidArgument(
        "--otlp-traces-endpoint is '{}'; give the gRPC port of a collector, as http://HOST:4317",
        endpoint);
  }
  target.address = rest;
  return target;
}

class Exporter final : public OtlpExporter {
 public:
  Exporter(OtlpOptions options, const Target& target)
      : options_(std::move(options)),
        channel_(grpc::CreateChannel(
            target.address,
            target.tls ? grpc::SslCredentials({}) : grpc::InsecureChannelCredentials())),
        method_(kMethod, grpc::internal::RpcMethod::NORMAL_RPC, channel_),
        instance_(std::to_string(::getpid()) + "-" + std::to_string(std::random_device{}())) {
    thread_ = std::thread([this] {
      try {
        Loop();
      } catch (const std::exception& error) {  // only a bug or an exhausted heap gets here
        base::CheckFailed("span exporter", error.what());
      }
    });
  }

  ~Exporter() override { Stop(); }

  void Put(RequestSpan span) override {
    std::size_t waiting = 0;
    {
      const std::lock_guard lock(mutex_);
      if (stop_ || queue_.size() >= options_.max_queued) {
        dropped_.fetch_add(1);
        return;
      }
      queue_.push_back(std::move(span));
      waiting = queue_.size();
    }
    if (waiting == options_.max_batch) {
      changed_.notify_one();
    }
  }

  std::uint64_t exported() const override { return exported_.load(); }
  std::uint64_t dropped() const override { return dropped_.load(); }

  void Stop() override {
    {
      std::unique_lock lock(mutex_);
      if (!stop_) {
        stop_ = true;
        deadline_ = Clock::now() + std::chrono::milliseconds(options_.stop_deadline_ms);
      }
      changed_.notify_all();
      if (!changed_.wait_until(lock, deadline_, [this] { return ended_; }) && call_ != nullptr) {
        call_->TryCancel();  // it began before the end, with a deadline of its own
      }
    }
    if (thread_.joinable()) {
      thread_.join();
    }
  }

 private:
  void Loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait_for(lock, std::chrono::milliseconds(options_.period_ms), [this] {
        return stop_ || queue_.size() >= options_.max_batch;
      });
      while (!queue_.empty()) {
        std::vector<RequestSpan> batch;
        const std::size_t count = std::min(queue_.size(), options_.max_batch);
        for (std::size_t i = 0; i < count; ++i) {
          batch.push_back(std::move(queue_.front()));
          queue_.pop_front();
        }
        lock.unlock();
        Send(batch);
        lock.lock();
      }
      if (stop_) {
        ended_ = true;
        changed_.notify_all();
        return;
      }
    }
  }

  /// Three tries with a pause between them, all within the end's deadline once it is known.
  void Send(const std::vector<RequestSpan>& batch) {
    const otlp::ExportRequest request = RequestOf(batch);
    grpc::Status status;
    for (int tried = 0; tried < kTries; ++tried) {
      if (tried > 0 && !Pause(tried)) {
        break;
      }
      status = Call(request);
      if (status.ok()) {
        exported_.fetch_add(batch.size());
        failing_ = false;
        return;
      }
    }
    dropped_.fetch_add(batch.size());
    if (!std::exchange(failing_, true)) {  // once, not for every batch
      log::Warning("api",
                   "spans are dropped: {} does not take them: {}",
                   options_.endpoint,
                   status.error_message());
    }
  }

  otlp::ExportRequest RequestOf(const std::vector<RequestSpan>& batch) {
    otlp::ExportRequest request;
    otlp::ResourceSpans* const all = request.add_resource_spans();
    FillResource(options_.service, kVersion, instance_, all->mutable_resource());
    otlp::ScopeSpans* const scope = all->add_scope_spans();
    scope->mutable_scope()->set_name("inferd");
    scope->mutable_scope()->set_version(std::string(kVersion));
    for (const RequestSpan& span : batch) {
      std::string random(kRandomBytes, '\0');
      std::generate(random.begin(), random.end(), [this] { return static_cast<char>(random_()); });
      FillSpan(span, random, scope->add_spans());
    }
    return request;
  }

  grpc::Status Call(const otlp::ExportRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + TimeLeft(options_.call_deadline_ms));
    otlp::ExportReply reply;
    SetCall(&context);
    grpc::Status status =
        grpc::internal::BlockingUnaryCall(channel_.get(), method_, &context, request, &reply);
    SetCall(nullptr);
    return status;
  }

  void SetCall(grpc::ClientContext* call) {
    const std::lock_guard lock(mutex_);
    call_ = call;
  }

  /// False: the end has come.
  bool Pause(int tried) {
    std::unique_lock lock(mutex_);
    const auto pause = std::chrono::milliseconds(200 << tried);
    changed_.wait_for(lock, pause, [this] { return stop_; });
    return !stop_ || Clock::now() < deadline_;
  }

  std::chrono::milliseconds TimeLeft(std::int64_t most_ms) {
    const std::lock_guard lock(mutex_);
    const std::chrono::milliseconds most(most_ms);
    if (!stop_) {
      return most;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now());
    return std::clamp(left, std::chrono::milliseconds(1), most);
  }

  const OtlpOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const grpc::internal::RpcMethod method_;
  const std::string instance_;
  std::atomic<std::uint64_t> exported_{0}, dropped_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RequestSpan> queue_;        // guarded by mutex_
  bool stop_ = false;                    // guarded by mutex_
  Clock::time_point deadline_;           // guarded by mutex_; with stop_
  bool ended_ = false;                   // guarded by mutex_; the thread has nothing left
  grpc::ClientContext* call_ = nullptr;  // guarded by mutex_; under way
  // The thread's own:
  std::random_device random_;
  bool failing_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::shared_ptr<OtlpExporter>> OtlpExporter::Start(const OtlpOptions& options) {
  INFERD_ASSIGN(const Target target, ParseEndpoint(options.endpoint));
  return std::shared_ptr<OtlpExporter>(std::make_shared<Exporter>(options, target));
}

}  // namespace inferd::api
