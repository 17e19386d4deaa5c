// SPDX-License-Identifier: Apache-2.0
// Threads: gRPC's (OnReadDone, OnWriteDone, OnCancel), the request pool's (Prepare) and the host's
// (OnProgress, OnEnd of each request). One lock guards the stream; a slow client leaves the texts
// in the generations, and at most kQueuedMessages rendered ones here.
#include "api/grpc/infer_stream.h"

#include "api/core/guard.h"
#include "api/core/serving_state.h"
#include "api/grpc/grpc_status.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

using Request = inference::ModelInferRequest;
using Response = inference::ModelStreamInferResponse;

constexpr std::size_t kQueuedMessages = 64;
constexpr const char* kFinalResponse = "triton_final_response";
constexpr const char* kAskFinal = "triton_enable_empty_final_response";

class InferStream;

/// One request of the stream, from its arrival to its end.
class Part final : public GenerationListener {
 public:
  Part(std::shared_ptr<InferStream> stream, Request request)
      : stream_(std::move(stream)), request_(std::move(request)) {}

  bool OnProgress(Generation* generation, std::int64_t now_ms) override;
  void OnEnd(Generation* generation) override;

  const Request& request() const { return request_; }

  std::shared_ptr<tenant::Admission> admission;  // of this request; set once, before it is prepared
  // Guarded by the stream's lock.
  GenerationHost::Ticket ticket = 0;
  bool waiting = false;  // for room in the queue

 private:
  const std::shared_ptr<InferStream> stream_;
  const Request request_;
};

class InferStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                          public std::enable_shared_from_this<InferStream> {
 public:
  InferStream(GrpcShared* shared, grpc::CallbackServerContext* context)
      : shared_(shared), context_(context), record_(shared, context, "ModelStreamInfer") {}

  void Begin() {
    self_ = shared_from_this();
    Fault fault;
    const auto admitted = shared_->Admit(*context_, tenant::Scope::kAny, record_.method(), &fault);
    if (admitted.ok()) {
      return StartRead(&incoming_);
    }
    closed_ = true;
    reading_ = false;
    record_.SetCode(static_cast<int>(admitted.error().code()));
    Finish(ToStatus(admitted.error(), fault, context_));
  }

  bool Progress(Part* part, Generation* generation, std::int64_t now_ms);
  /// `fault` belongs to the failure.
  void End(Part* part, const std::optional<Error>& failure, const Fault& fault);
  void Emit(inference::ModelInferResponse response) {
    *queue_.emplace_back().mutable_infer_response() = std::move(response);
  }

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { const std::shared_ptr<InferStream> last = std::move(self_); }

  void Prepare(Part* part);
  void EmitEnd(const Part& part, const std::optional<Error>& failure, const Fault& fault);
  /// Starts what can be started now: a write, a read, or the end. Unlocks.
  void Act(std::unique_lock<std::mutex> lock);

  GrpcShared* const shared_;
  grpc::CallbackServerContext* const context_;
  CallRecord record_;
  std::shared_ptr<InferStream> self_;
  grpc::ByteBuffer incoming_;  // the read's, while one is under way
  grpc::ByteBuffer outgoing_;  // the write's

  std::mutex mutex_;  // guards all below
  std::set<std::shared_ptr<Part>> parts_;
  std::deque<Response> queue_;
  std::int64_t write_began_ms_ = 0;
  bool reading_ = true;
  bool reads_done_ = false;
  bool writing_ = false;
  bool broken_ = false;   // cancelled, or a write has failed
  bool garbage_ = false;  // a message could not be read
  bool closed_ = false;
};

bool Part::OnProgress(Generation* generation, std::int64_t now_ms) {
  return stream_->Progress(this, generation, now_ms);
}

void Part::OnEnd(Generation* generation) {
  const auto stream = stream_;  // End may drop the last other owner of this
  stream->End(this, generation->failure(), generation->fault());
}

// ---- gRPC's threads

void InferStream::OnReadDone(bool ok) {
  std::unique_lock lock(mutex_);
  reading_ = false;
  if (!ok || broken_) {
    reads_done_ = true;
    return Act(std::move(lock));
  }
  Request request;
  if (!grpc::SerializationTraits<Request>::Deserialize(&incoming_, &request).ok()) {
    garbage_ = true;  // what comes behind it cannot be trusted
    reads_done_ = true;
    return Act(std::move(lock));
  }
  const auto part = std::make_shared<Part>(shared_from_this(), std::move(request));
  parts_.insert(part);
  lock.unlock();
  Fault fault;
  auto admitted = shared_->Admit(*context_, tenant::Scope::kInference, record_.method(), &fault);
  if (!admitted.ok()) {
    return End(part.get(), admitted.error(), fault);
  }
  part->admission = *std::move(admitted);
  const ServerContext context = shared_->Context();
  if (auto error = NotServing(context.service.phase(), context.draining, &fault)) {
    return End(part.get(), error, fault);
  }
  const auto job = [self = shared_from_this(), part] { self->Prepare(part.get()); };
  if (!shared_->pool->TryRun(RequestPool::Lane::kHeavy, job)) {
    const Error error = TooManyUnread(&fault);
    return End(part.get(), error, fault);
  }
  Act(std::unique_lock(mutex_));
}

void InferStream::OnWriteDone(bool ok) {
  std::unique_lock lock(mutex_);
  writing_ = false;
  broken_ |= !ok;
  Act(std::move(lock));
}

void InferStream::OnCancel() {
  std::unique_lock lock(mutex_);
  broken_ = true;
  for (const auto& part : parts_) {
    if (part->ticket != 0) {
      shared_->host->Cancel(part->ticket);
    }
  }
  Act(std::move(lock));
}

// ---- a request thread

void InferStream::Prepare(Part* part) {
  Fault fault;
  ServerContext context = shared_->Context(part->admission);
  context.session = record_.session();
  auto prepared = Guarded(record_.method(), [&] {
    return PrepareInferCall(
        context,
        part->request(),
        nullptr,
        [this](inference::ModelInferResponse response) { Emit(std::move(response)); },
        &fault);
  });
  if (!prepared.ok()) {
    return End(part, prepared.error(), fault);
  }
  std::unique_lock lock(mutex_);  // the host's calls wait for the ticket
  if (broken_) {
    lock.unlock();
    return End(part, Error(Code::kCancelled, "The call was cancelled"), {});
  }
  auto submitted = shared_->running.Submit(
      shared_->host.get(), std::move(prepared->generation), part, prepared->ids);
  if (!submitted.ok()) {
    lock.unlock();
    return End(part, submitted.error(), {});
  }
  part->ticket = *submitted;
}

// ---- the host's thread

bool InferStream::Progress(Part* part, Generation* generation, std::int64_t now_ms) {
  std::unique_lock lock(mutex_);
  if (broken_) {
    return false;
  }
  if (queue_.size() >= kQueuedMessages) {
    part->waiting = true;
    const GrpcOptions& options = shared_->options;
    if (generation->pending_bytes() > options.hard_backlog_bytes ||
        (writing_ && now_ms - write_began_ms_ > options.stall_timeout_ms)) {
      shared_->metrics.slow_clients_cut.fetch_add(1, std::memory_order_relaxed);
      log::Warning("api", "gRPC client cut: it is too far behind id={}", record_.request_id());
      broken_ = true;
      context_->TryCancel();
      return false;
    }
    return true;
  }
  if (generation->failure()) {
    return false;
  }
  if (generation->dirty()) {
    std::string nothing;
    generation->RenderStream(&nothing);
  }
  const bool more = !generation->done();
  Act(std::move(lock));
  return more;
}

void InferStream::EmitEnd(const Part& part,
                          const std::optional<Error>& failure,
                          const Fault& fault) {
  const Request& request = part.request();
  if (failure) {
    Response& message = queue_.emplace_back();
    message.set_error_message(std::string(PublicMessage(*failure)));
    message.mutable_infer_response()->set_id(request.id());
    message.mutable_infer_response()->set_model_name(request.model_name());
    // What would be trailing metadata, if this ended the call.
    auto& parameters = *message.mutable_infer_response()->mutable_parameters();
    if (!fault.reason.empty()) {
      parameters[kRejectedReasonKey].set_string_param(std::string(fault.reason));
    }
    if (const std::int64_t retry_ms = RetryMs(*failure, fault); retry_ms > 0) {
      parameters[kRetryAfterKey].set_int64_param(retry_ms);
    }
    return;
  }
  const auto asked = request.parameters().find(kAskFinal);
  if (asked != request.parameters().end() && asked->second.bool_param()) {
    auto* const last = queue_.emplace_back().mutable_infer_response();
    last->set_id(request.id());
    last->set_model_name(request.model_name());
    last->set_model_version(std::string(kModelVersion));
    (*last->mutable_parameters())[kFinalResponse].set_bool_param(true);
  }
}

void InferStream::End(Part* part, const std::optional<Error>& failure, const Fault& fault) {
  std::unique_lock lock(mutex_);
  part->admission.reset();  // a client that knows the end may begin anew
  if (part->ticket != 0 && !part->request().id().empty()) {
    shared_->running.Remove(part->request().id(), shared_->host.get(), part->ticket);
  }
  if (failure && StatusOf(failure->code()).http_status == 500) {
    log::Failure("api", "{} id={}", failure->message(), part->request().id());
  }
  if (!broken_) {
    EmitEnd(*part, failure, fault);
  }
  std::shared_ptr<Part> last;
  for (auto it = parts_.begin(); it != parts_.end(); ++it) {
    if (it->get() == part) {
      last = *it;
      parts_.erase(it);
      break;
    }
  }
  Act(std::move(lock));
}

void InferStream::Act(std::unique_lock<std::mutex> lock) {
  if (broken_) {
    queue_.clear();
    reads_done_ |= !reading_;
  }
  const bool write = !writing_ && !queue_.empty();
  if (write) {
    outgoing_.Clear();
    bool own_buffer = false;  // of no use: the buffer counts its references
    INFERD_CHECK(
        grpc::SerializationTraits<Response>::Serialize(queue_.front(), &outgoing_, &own_buffer)
            .ok());
    queue_.pop_front();
    writing_ = true;
    write_began_ms_ = base::SteadyClock::Get().NowMs();
  }
  if (queue_.size() < kQueuedMessages / 2) {
    for (const auto& part : parts_) {
      if (std::exchange(part->waiting, false)) {
        shared_->host->Resume(part->ticket);
      }
    }
  }
  const bool read = !reading_ && !reads_done_ &&
                    parts_.size() < shared_->options.max_requests_per_stream &&
                    queue_.size() < kQueuedMessages;
  reading_ |= read;
  const bool end = reads_done_ && parts_.empty() && queue_.empty() && !writing_ && !closed_;
  closed_ |= end;
  const bool broken = broken_;
  const bool garbage = garbage_;
  lock.unlock();
  if (write) {
    StartWrite(&outgoing_);
  }
  if (read) {
    StartRead(&incoming_);
  }
  if (end) {
    const grpc::Status status =
        broken    ? grpc::Status(grpc::StatusCode::CANCELLED, "The call was cancelled")
        : garbage ? grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "A message could not be read")
                  : grpc::Status::OK;
    record_.SetCode(static_cast<int>(status.error_code()));
    Finish(status);
  }
}

}  // namespace

Result<PreparedCall> PrepareInferCall(const ServerContext& context,
                                      const Request& request,
                                      inference::ModelInferResponse* full,
                                      InferProtoFormat::Emit emit,
                                      Fault* fault) {
  INFERD_TRY(CheckModelVersion(context, request.model_name(), request.model_version(), fault));
  INFERD_ASSIGN(InferRequest read, ReadInfer(request, fault));
  INFERD_ASSIGN(GenerationSpec spec,
                PrepareInfer(context, std::move(read), full == nullptr, fault));
  spec.format =
      std::make_unique<InferProtoFormat>(ShapeOf(context, request), full, std::move(emit));
  PreparedCall prepared;
  if (!request.id().empty()) {
    prepared.ids.push_back(request.id());
  }
  prepared.generation = std::make_unique<Generation>(std::move(spec));
  return prepared;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartInferStream(
    GrpcShared* shared, grpc::CallbackServerContext* context) {
  const auto stream = std::make_shared<InferStream>(shared, context);
  stream->Begin();
  return stream.get();
}

}  // namespace inferd::api
