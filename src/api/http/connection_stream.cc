// SPDX-License-Identifier: Apache-2.0
// The part of a connection that runs while its request generates: events in, the stream out.
#include "api/core/refusal.h"
#include "api/http/connection.h"
#include "api/http/error_response.h"
#include "api/http/running_requests.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <atomic>
#include <utility>

namespace inferd::api {
namespace {

constexpr std::size_t kChunkHead = 10;  // room for "fffffff\r\n" before a chunk

std::int64_t NowNs() { return base::SteadyClock::Get().NowNs(); }
std::int64_t NowMs() { return base::SteadyClock::Get().NowMs(); }

/// Writes the size line of the chunk scratch[at..] into the kChunkHead bytes before `at`; the new
/// start.
std::size_t CloseChunk(std::string* scratch, std::size_t at) {
  std::size_t size = scratch->size() - at;
  (*scratch)[--at] = '\n';
  (*scratch)[--at] = '\r';
  for (; size != 0; size >>= 4) {
    (*scratch)[--at] = "0123456789abcdef"[size & 15];
  }
  *scratch += "\r\n";
  return at;
}

}  // namespace

void Connection::Start(std::uint64_t serial,
                       std::unique_ptr<Generation> generation,
                       std::string more) {
  if (state_ != State::kWaiting || serial != serial_) {
    return;
  }
  more_head_ = std::move(more);
  Move(State::kGenerating);
  spoke_ = true;  // the silence is counted from here
  generation_ = std::move(generation);
  io_->metrics->generations_open.fetch_add(1, std::memory_order_relaxed);
  RunningRequests* const running = io_->dispatcher->running();
  running->Add(request_.request_id, io_->thread, {id_, serial_});
  running->Add(generation_->format().id(), io_->thread, {id_, serial_});
  std::vector<leader::GenerateRequest> requests = generation_->TakeRequests();
  for (std::size_t prompt = 0; prompt < requests.size(); ++prompt) {
    leader::GenerateRequest& request = requests[prompt];
    request.stream = io_->OpenStream(shared_from_this(), prompt);
    request.sink = &io_->inbox;
    streams_.push_back(request.stream);
    leader::Refusal refusal;
    auto submitted = io_->service->Submit(std::move(request), &refusal);
    if (!submitted.ok()) {
      Fault fault = RefusedFor(refusal, submitted.error());
      generation_->Fail(std::move(submitted).error(), std::move(fault));
      break;
    }
  }
  Flush();
}

void Connection::Abort(std::uint64_t serial) {
  if (state_ != State::kGenerating || serial != serial_) {
    return;
  }
  for (const leader::StreamId stream : streams_) {
    io_->service->Cancel(stream, -1);
  }
  generation_->Abort();
  Flush();
}

void Connection::OnEvent(std::size_t prompt, leader::OutputEvent event, std::int64_t now_ns) {
  if (state_ != State::kGenerating) {
    return;
  }
  const leader::StreamId stream = event.stream;
  if (const auto choice = generation_->OnEvent(prompt, std::move(event), now_ns)) {
    io_->service->Cancel(stream, *choice);  // a stop string was found
  }
  MarkDirty();
}

void Connection::OnLost() {
  if (state_ == State::kGenerating) {
    io_->metrics->events_lost.fetch_add(1, std::memory_order_relaxed);
    generation_->Fail(Unavailable("The server fell behind; try again"));
    MarkDirty();
  }
}

void Connection::MarkDirty() {
  if (!queued) {
    queued = true;
    io_->dirty.push_back(shared_from_this());
  }
}

void Connection::Flush() {
  if (state_ != State::kGenerating) {
    return;
  }
  const bool done = generation_->done();
  if (generation_->failure() && !failure_logged_) {
    failure_logged_ = true;
    log::Failure("api", "{} id={}", generation_->failure()->message(), request_.request_id);
  }
  if (generation_->failure() && !head_sent_) {
    HttpResponse response =
        ErrorResponseWithBody(*generation_->failure(),
                              generation_->format().FailureBody(*generation_->failure()),
                              generation_->fault());
    FinishGeneration(false);
    return SendResponse(std::move(response));
  }
  if (!generation_->stream()) {
    if (done) {
      HttpResponse response;
      response.content_type = generation_->format().full_content_type();
      generation_->RenderFull(&response.body);
      response.headers = generation_->format().full_headers();
      FinishGeneration(false);
      SendResponse(std::move(response));
    }
    return;
  }
  if (!unsent_.empty()) {  // behind: what comes is kept as text and goes out together
    const std::size_t backlog = unsent_.size() + generation_->pending_bytes();
    if (backlog > io_->options.hard_backlog_bytes) {
      io_->metrics->slow_clients_cut.fetch_add(1, std::memory_order_relaxed);
      log::Warning("api", "client cut: {} bytes behind id={}", backlog, request_.request_id);
      return Close(true);
    }
    if (backlog <= io_->options.soft_backlog_bytes) {
      behind_ms_ = 0;
    } else if (behind_ms_ == 0) {
      behind_ms_ = NowMs();
    }
    return;
  }
  behind_ms_ = 0;
  SendPending();
}

void Connection::AppendStreamHead(std::string* out) {
  if (head_sent_) {
    return;
  }
  head_sent_ = true;
  const bool chunked = request_.version_minor > 0;
  HttpResponse response;
  response.content_type = generation_->format().stream_content_type();
  response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  if (chunked) {
    response.headers.emplace_back("Transfer-Encoding", "chunked");
  }
  keep_alive_ = KeepAlive() && chunked;
  *out += ResponseHead(response, request_, -1, keep_alive_, more_head_);
  io_->metrics->CountResponse(200);
}

/// A comment keeps proxies and clients from giving up on an event stream that has nothing to say
/// yet.
void Connection::Beat(std::int64_t now_ms) {
  constexpr std::string_view kPing = ": ping\n\n";
  const std::int64_t heartbeat_ms = io_->options.heartbeat_ms;
  if (spoke_) {
    spoke_ = false;
    quiet_since_ms_ = now_ms;
  }
  if (heartbeat_ms == 0 || now_ms - quiet_since_ms_ < heartbeat_ms || !unsent_.empty() ||
      !generation_->stream() || generation_->done() ||
      !generation_->format().stream_content_type().starts_with("text/event-stream")) {
    return;
  }
  quiet_since_ms_ = now_ms;
  std::string bytes;
  AppendStreamHead(&bytes);
  bytes += request_.version_minor > 0 ? fmt::format("{:x}\r\n{}\r\n", kPing.size(), kPing)
                                      : std::string(kPing);
  Send(bytes);
}

void Connection::SendPending() {
  if (!generation_->dirty()) {
    return;
  }
  std::string& scratch = io_->scratch;
  scratch.clear();
  const bool chunked = request_.version_minor > 0;
  spoke_ = true;
  AppendStreamHead(&scratch);
  const std::size_t head_bytes = scratch.size();
  std::size_t start = head_bytes + (chunked ? kChunkHead : 0);
  scratch.resize(start);
  generation_->RenderStream(&scratch);
  const bool done = generation_->done();
  if (chunked && scratch.size() > start) {
    start = CloseChunk(&scratch, start);
  } else if (chunked) {
    scratch.resize(start = head_bytes);
  }
  if (chunked && done) {
    scratch += "0\r\n\r\n";
  }
  // Between the head and the first chunk lie a few unused bytes of the size line: send around them.
  scratch.erase(head_bytes, start - head_bytes);
  if (done) {
    LogAccess(200);
    FinishGeneration(false);
    Move(State::kWriting);
  }
  if (Send(scratch) && state_ == State::kWriting && unsent_.empty()) {
    EndResponse();
  }
  if (scratch.capacity() > (1U << 20)) {
    std::string().swap(scratch);
  }
}

/// Ends the streams on the engine side (a no-op there for those that have ended) and books the
/// outcome.
void Connection::FinishGeneration(bool client_left) {
  const bool complete = generation_->done() && !generation_->failure();
  for (const leader::StreamId stream : streams_) {
    if (!complete) {
      io_->service->Cancel(stream, -1);
    }
    io_->CloseStream(stream);
  }
  streams_.clear();
  RunningRequests* const running = io_->dispatcher->running();
  running->Remove(request_.request_id, io_->thread, {id_, serial_});
  running->Remove(generation_->format().id(), io_->thread, {id_, serial_});
  generation_->Record(NowNs(), client_left);
  io_->metrics->generations_open.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace inferd::api
