// SPDX-License-Identifier: Apache-2.0
#include "api/batch/line_runner.h"

#include "api/batch/line_handlers.h"
#include "api/core/generate_params.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace inferd::api {
namespace {

constexpr std::uint32_t kHostIndex = 1001;  // I/O threads have the numbers from 0, gRPC has 1000
constexpr std::size_t kSpareAnswers = 16;   // of Wake

/// What an error that ended a line means for it.
LineAnswer::Kind KindOf(Code code) {
  switch (code) {
    case Code::kResourceExhausted:
      return LineAnswer::Kind::kPutOff;
    case Code::kUnavailable:
    case Code::kDeadlineExceeded:
      return LineAnswer::Kind::kLost;
    case Code::kCancelled:
      return LineAnswer::Kind::kCancelled;
    default:
      return LineAnswer::Kind::kAnswered;
  }
}

void SetError(const Error& error, const Fault& fault, LineAnswer* answer) {
  answer->kind = KindOf(error.code());
  answer->status = StatusOf(error.code()).http_status;
  answer->body = ErrorBody(error, fault);
  answer->retry_after_ms = fault.retry_after_ms;
  if (answer->status == 500) {
    log::Failure("api", "{} id={}", error.message(), answer->request_id);
  }
}

}  // namespace

/// A line that generates; ends itself with its answer.
class LineRunner::Running final : public GenerationListener {
 public:
  Running(LineRunner* runner, LineAnswer answer, std::unique_ptr<Generation> generation)
      : runner_(runner), answer_(std::move(answer)), generation_(std::move(generation)) {}

  bool OnProgress(Generation* generation, std::int64_t /*now_ms*/) override {
    if (generation->done() && !generation->failure()) {
      generation->RenderFull(&answer_.body);
    }
    return !generation->done();
  }

  void OnEnd(Generation* generation) override {
    if (generation->failure()) {
      SetError(*generation->failure(), generation->fault(), &answer_);
    }
    const std::unique_ptr<Running> self(this);
    runner_->Put(std::move(answer_));
  }

  std::unique_ptr<Generation> TakeGeneration() { return std::move(generation_); }

 private:
  LineRunner* const runner_;
  LineAnswer answer_;
  std::unique_ptr<Generation> generation_;  // until the host has it
};

LineRunner::LineRunner(std::shared_ptr<const ServedModel> model,
                       leader::InferenceService* service,
                       Metrics* metrics,
                       tenant::Gate* gate,
                       std::size_t max_running,
                       HandlerCall call)
    : model_(std::move(model)),
      service_(service),
      metrics_(metrics),
      gate_(gate),
      max_running_(max_running),
      call_(call),
      answers_(max_running + kSpareAnswers),
      host_({.index = kHostIndex, .max_generations = max_running + 1}, service, metrics) {}

LineRunner::~LineRunner() { Stop(); }

void LineRunner::Stop() { host_.Stop(); }

bool LineRunner::HasRoom() const {
  if (running_.size() >= max_running_ || service_->phase() != leader::Phase::kReady) {
    return false;
  }
  const auto stats = service_->stats();
  return std::all_of(
      stats.begin(), stats.end(), [](const auto& replica) { return replica.waiting == 0; });
}

/// An error fills in the answer; without a generation it holds the answer.
Result<std::unique_ptr<LineRunner::Running>> LineRunner::Prepare(const LineRequest& line,
                                                                 LineAnswer* answer) {
  ServerContext context{.model = *model_,
                        .service = *service_,
                        .metrics = *metrics_,
                        .background = true,
                        .arrived_ns = base::SteadyClock::Get().NowNs()};
  Fault fault;
  const auto fail = [&](Error error) {
    SetError(error, fault, answer);
    return error;
  };
  if (gate_ != nullptr) {
    tenant::Refusal refusal;
    const std::string operation = "batch:" + line.url;
    auto admitted = gate_->AdmitOwner(
        line.owner, {.operation = operation, .request_id = answer->request_id}, &refusal);
    if (!admitted.ok()) {
      fault = {"", "", refusal.retry_after_ms};
      return fail(admitted.error());
    }
    context.admission = *std::move(admitted);
  }
  HttpRequest request;
  request.method = "POST";
  request.path = line.url;
  request.body = line.body;
  request.request_id = answer->request_id;
  auto outcome = call_(HandlerOf(line.url), context, request, &fault);
  if (!outcome.ok()) {
    return fail(outcome.error());
  }
  if (auto* const response = std::get_if<HttpResponse>(&*outcome)) {
    answer->status = response->status;
    answer->body = std::move(response->body);
    return std::unique_ptr<Running>();
  }
  auto& generation = std::get<std::unique_ptr<Generation>>(*outcome);
  if (generation->stream()) {
    return fail(FieldError(&fault, "stream", "stream is not supported in a batch; leave it out"));
  }
  return std::make_unique<Running>(this, *answer, std::move(generation));
}

void LineRunner::Start(LineRequest line) {
  LineAnswer answer;
  answer.tag = line.tag;
  answer.request_id = NewId("req_");
  running_[line.tag] = 0;
  metrics_->batch_lines_running.fetch_add(1, std::memory_order_relaxed);
  auto prepared = Prepare(line, &answer);
  if (!prepared.ok() || *prepared == nullptr) {
    return Put(std::move(answer));
  }
  std::unique_ptr<Running> running = *std::move(prepared);
  auto submitted = host_.Submit(running->TakeGeneration(), running.get());
  if (!submitted.ok()) {
    SetError(submitted.error(), {}, &answer);
    return Put(std::move(answer));
  }
  [[maybe_unused]] const Running* const own = running.release();  // until OnEnd
  running_[line.tag] = *submitted;
}

void LineRunner::Cancel(std::uint64_t tag) {
  const auto it = running_.find(tag);
  if (it != running_.end() && it->second != 0) {
    host_.Cancel(it->second);
  }
}

void LineRunner::Put(LineAnswer answer) {
  // One per running line and some to wake: there is room.
  INFERD_CHECK(answers_.TryPush(std::move(answer)));
}

void LineRunner::Wake() {
  if (!woken_.exchange(true)) {
    answers_.TryPush(LineAnswer{});
  }
}

std::optional<LineAnswer> LineRunner::Take(std::chrono::milliseconds timeout) {
  auto answer = answers_.PopFor(timeout);
  if (!answer) {
    return std::nullopt;
  }
  if (answer->tag == 0) {
    woken_.store(false);
    return std::nullopt;
  }
  running_.erase(answer->tag);
  metrics_->batch_lines_running.fetch_sub(1, std::memory_order_relaxed);
  return answer;
}

}  // namespace inferd::api
