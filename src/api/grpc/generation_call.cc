// SPDX-License-Identifier: Apache-2.0
#include "api/grpc/generation_call.h"

#include "api/core/guard.h"
#include "api/core/serving_state.h"
#include "api/grpc/grpc_status.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <utility>

namespace inferd::api {
namespace {

Error Cancelled() { return {Code::kCancelled, "The call was cancelled"}; }

}  // namespace

GenerationCall::GenerationCall(GrpcShared* shared,
                               grpc::CallbackServerContext* context,
                               std::string_view method)
    : shared_(shared), context_(context), record_(shared, context, method) {}

// ---- before the generation

void GenerationCall::Begin(PrepareCall prepare) {
  self_ = shared_from_this();
  Fault fault;
  auto admitted = shared_->Admit(*context_, tenant::Scope::kInference, record_.method(), &fault);
  if (!admitted.ok()) {
    return EndWith(admitted.error(), fault);
  }
  record_.SetAdmission(*std::move(admitted));
  const ServerContext context = shared_->Context();
  if (auto error = NotServing(context.service.phase(), context.draining, &fault)) {
    return EndWith(*error, fault);
  }
  auto job = [self = self_, prepare = std::move(prepare)]() mutable { self->Work(&prepare); };
  if (!shared_->pool->TryRun(RequestPool::Lane::kHeavy, std::move(job))) {
    const Error error = TooManyUnread(&fault);
    EndWith(error, fault);
  }
}

void GenerationCall::EndWith(const Error& error, const Fault& fault) {
  if (StatusOf(error.code()).http_status == 500) {
    log::Failure("api", "{} id={}", error.message(), record_.request_id());
  }
  std::unique_lock lock(mutex_);
  ended_ = true;
  status_ = ToStatus(error, fault, context_);
  EndIfQuiet(std::move(lock));
}

void GenerationCall::Work(PrepareCall* prepare) {
  bool cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    cancelled = cancelled_;
  }
  if (cancelled) {
    return EndWith(Cancelled(), {});
  }
  Fault fault;
  ServerContext context = shared_->Context(record_.admission());
  context.session = record_.session();
  context.span = record_.BeginSpan(*context_);
  auto prepared = Guarded(record_.method(), [&] { return (*prepare)(context, &fault); });
  if (!prepared.ok()) {
    if (context.span != nullptr) {
      context.span->span().error = prepared.error();
      context.span->span().error_param = fault.param;
    }
    return EndWith(prepared.error(), fault);
  }
  std::unique_lock lock(mutex_);  // OnEnd waits for the ticket
  ids_ = std::move(prepared->ids);
  if (!record_.request_id().empty()) {
    ids_.push_back(record_.request_id());
  }
  auto submitted =
      shared_->running.Submit(shared_->host.get(), std::move(prepared->generation), this, ids_);
  if (!submitted.ok()) {
    lock.unlock();
    return EndWith(submitted.error(), {});
  }
  ticket_ = *submitted;
  if (cancelled_) {
    shared_->host->Cancel(ticket_);
  }
}

// ---- gRPC's threads

void GenerationCall::OnCancelled() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (ticket_ != 0) {
    shared_->host->Cancel(ticket_);
  }
}

void GenerationCall::OnWritten(bool ok) {
  std::unique_lock lock(mutex_);
  broken_ |= !ok;
  if (!broken_ && TakeMessage()) {
    write_began_ms_ = base::SteadyClock::Get().NowMs();
    lock.unlock();
    return StartWriting();
  }
  writing_ = false;
  if (ended_) {
    return EndIfQuiet(std::move(lock));
  }
  if (waiting_ || broken_) {
    waiting_ = false;
    shared_->host->Resume(ticket_);
  }
}

void GenerationCall::Done() { const std::shared_ptr<GenerationCall> last = std::move(self_); }

// ---- the host's thread

/// The client takes nothing for too long, or is too far behind.
bool GenerationCall::BehindForGood(const Generation& generation, std::int64_t now_ms) {
  return generation.pending_bytes() > shared_->options.hard_backlog_bytes ||
         now_ms - write_began_ms_ > shared_->options.stall_timeout_ms;
}

bool GenerationCall::OnProgress(Generation* generation, std::int64_t now_ms) {
  {
    const std::lock_guard lock(mutex_);
    if (broken_) {
      return false;
    }
    if (writing_) {
      waiting_ = true;
      if (!BehindForGood(*generation, now_ms)) {
        return true;
      }
      shared_->metrics.slow_clients_cut.fetch_add(1, std::memory_order_relaxed);
      log::Warning("api", "gRPC client cut: it is too far behind id={}", record_.request_id());
      status_ = ToStatus(ResourceExhausted("The client did not take the answer in time"),
                         {.retry_after_ms = -1},
                         context_);
      return false;
    }
    if (generation->failure()) {
      return false;  // OnEnd says how
    }
    if (!generation->stream()) {
      if (generation->done()) {
        generation->RenderFull(&scratch_);
      }
      return !generation->done();
    }
    if (generation->dirty()) {
      generation->RenderStream(&scratch_);
      scratch_.clear();
    }
    if (!TakeMessage()) {
      return !generation->done();
    }
    writing_ = true;
    write_began_ms_ = now_ms;
    waiting_ = generation->done();  // come back to end the call
  }
  StartWriting();
  return true;
}

void GenerationCall::OnEnd(Generation* generation) {
  std::unique_lock lock(mutex_);
  for (const std::string& id : ids_) {
    shared_->running.Remove(id, shared_->host.get(), ticket_);
  }
  ended_ = true;
  if (status_.ok() && generation->failure()) {
    const Error& error = *generation->failure();
    if (StatusOf(error.code()).http_status == 500) {
      log::Failure("api", "{} id={}", error.message(), record_.request_id());
    }
    status_ = ToStatus(error, generation->fault(), context_);
  } else if (status_.ok() && broken_) {
    status_ = ToStatus(Cancelled(), {}, context_);
  }
  if (writing_ && !status_.ok()) {
    context_->TryCancel();  // the write would not end by itself
  }
  EndIfQuiet(std::move(lock));
}

void GenerationCall::EndIfQuiet(std::unique_lock<std::mutex> lock) {
  if (writing_ || !ended_ || closed_) {
    return;
  }
  closed_ = true;
  record_.SetCode(static_cast<int>(status_.error_code()));
  const grpc::Status status = status_;
  record_.SetAdmission(nullptr);  // a client that knows the end may begin anew
  lock.unlock();
  EndCall(status);
}

}  // namespace inferd::api
