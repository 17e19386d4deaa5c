// SPDX-License-Identifier: Apache-2.0
#include "api/http/connection.h"

#include "api/core/limits.h"
#include "api/http/error_response.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <random>
#include <utility>

namespace inferd::api {
namespace {

constexpr int kReadsPerTurn = 16;  // then other connections have their turn
constexpr std::size_t kMaxLingerBytes = 64U << 20;
constexpr std::size_t kFilePieceBytes = 128U << 10;
constexpr int kFilePiecesPerTurn = 8;

std::int64_t NowNs() { return base::SteadyClock::Get().NowNs(); }
std::int64_t NowMs() { return base::SteadyClock::Get().NowMs(); }

/// Unique within the server; not a secret.
std::string NewRequestId() {
  static const std::uint64_t start = std::random_device()();
  static std::atomic<std::uint64_t> next{0};
  return fmt::format(
      "{:08x}{:08x}", start & 0xffffffff, next.fetch_add(1, std::memory_order_relaxed));
}

}  // namespace

/// Counts the connections that owe their client an answer, for draining.
void Connection::Move(State to) {
  const auto busy = [](State state) {
    return state == State::kWaiting || state == State::kGenerating || state == State::kWriting;
  };
  const int change = static_cast<int>(busy(to)) - static_cast<int>(busy(state_));
  if (change != 0) {
    io_->metrics->requests_open.fetch_add(change, std::memory_order_acq_rel);
  }
  state_ = to;
}

Connection::Connection(IoState* io, StreamSocket socket, std::uint64_t id)
    : io_(io), socket_(std::move(socket)), id_(id) {}

void Connection::Begin() {
  boost::system::error_code ignored;  // the client may be gone already; the first read will tell
  socket_.non_blocking(true, ignored);
  const int fd = socket_.native_handle();
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  // Without this a slow client's backlog sits in the kernel, where it can be neither merged nor
  // dropped.
  const int unsent = io_->options.unsent_in_kernel;
  setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
  since_ms_ = NowMs();
  if (io_->options.tls != nullptr) {
    tls_ = io_->options.tls->Accept(fd);
    if (tls_ == nullptr) {
      log::Warning("api", "no memory for a TLS session; the connection is closed");
      return Close(false);
    }
  }
  OnReadable();
}

// ---- bytes

/// As recv(2), through TLS where there is one.
ssize_t Connection::Receive(char* to, std::size_t size) {
  if (tls_ == nullptr) {
    return recv(socket_.native_handle(), to, size, 0);
  }
  const TlsSession::Moved moved = tls_->Read(to, size);
  if (moved.want == TlsSession::Want::kWrite) {  // the handshake's own bytes are stuck
    read_wants_write_ = true;
    WaitWritable();
  }
  if (moved.want == TlsSession::Want::kRead || moved.want == TlsSession::Want::kWrite) {
    errno = EAGAIN;
    return -1;
  }
  return static_cast<ssize_t>(moved.bytes);
}

/// As send(2), through TLS where there is one.
ssize_t Connection::Transmit(std::string_view bytes) {
  if (tls_ == nullptr) {
    return send(socket_.native_handle(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  const TlsSession::Moved moved = tls_->Write(bytes);
  if (moved.bytes > 0) {
    return static_cast<ssize_t>(moved.bytes);
  }
  errno = moved.want == TlsSession::Want::kWrite ? EAGAIN : EPIPE;
  return -1;
}

// ---- reading

void Connection::WaitReadable() {
  if (reading_ || state_ == State::kClosed) {
    return;
  }
  reading_ = true;
  socket_.async_wait(StreamSocket::wait_read,
                     [self = shared_from_this()](const boost::system::error_code& ec) {
                       self->reading_ = false;
                       if (!ec && self->state_ != State::kClosed) {
                         self->OnReadable();
                       }
                     });
}

void Connection::OnReadable() {
  std::vector<char>& buffer = io_->read_buffer;
  for (int i = 0; i < kReadsPerTurn; ++i) {
    if (state_ != State::kReading && state_ != State::kLingering &&
        in_.size() >= limits::kPipelinedBytes) {
      return;  // the next requests can wait in the kernel; EndResponse reads on
    }
    const ssize_t n = Receive(buffer.data(), buffer.size());
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      break;
    }
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {  // end of input ends the connection, also as a half-close (as in Go's net/http)
      return Close(true);
    }
    if (state_ == State::kLingering) {
      body_bytes_ += static_cast<std::size_t>(n);
      if (body_bytes_ > kMaxLingerBytes) {
        return Close(false);
      }
      continue;
    }
    in_.append(buffer.data(), static_cast<std::size_t>(n));
    if (state_ == State::kReading) {
      Parse();
      if (state_ == State::kClosed) {
        return;
      }
    }
  }
  WaitReadable();
}

void Connection::Parse() {
  if (parsing_) {
    return;  // an answer given at once ends inside the loop below, not by recursion
  }
  parsing_ = true;
  while (state_ == State::kReading && !in_.empty()) {
    if (parser_ == nullptr) {
      parser_ = std::make_unique<HttpParser>(io_->body_limits);
      since_ms_ = used_ ? NowMs() : since_ms_;
      body_bytes_ = 0;
    }
    const bool had_head = parser_->head_done();
    std::size_t used = 0;
    const HttpParser::State result = parser_->Feed(in_, &used);
    in_.erase(0, used);
    if (in_.empty() && in_.capacity() > 4096) {
      std::string().swap(in_);
    }
    if (parser_->head_done()) {
      body_since_ms_ = had_head ? body_since_ms_ : NowMs();
      body_bytes_ += used;
    }
    if (result == HttpParser::State::kMore) {
      if (parser_->TakeContinue()) {
        Send("HTTP/1.1 100 Continue\r\n\r\n");
      }
      break;
    }
    if (result == HttpParser::State::kBad) {
      Refuse();
      break;
    }
    request_ = parser_->Take();
    parser_.reset();
    used_ = true;
    keep_alive_ = request_.keep_alive;
    Move(State::kWaiting);
    ++serial_;
    request_ns_ = NowNs();
    if (request_.request_id.empty()) {
      request_.request_id = NewRequestId();
    }
    HttpRequest request = std::move(request_);
    request_.method = request.method;
    request_.path = request.path;
    request_.request_id = request.request_id;
    request_.version_minor = request.version_minor;
    request_.traceparent = request.traceparent;
    more_head_.clear();
    io_->dispatcher->Dispatch(io_->thread, {id_, serial_}, std::move(request));
  }
  parsing_ = false;
}

void Connection::Refuse() {
  request_ = parser_->Partial();
  more_head_.clear();
  request_ns_ = NowNs();
  if (request_.request_id.empty()) {
    request_.request_id = NewRequestId();
  }
  const int status = parser_->status();
  const Error error(status == 429   ? Code::kResourceExhausted
                    : status == 401 ? Code::kUnauthenticated
                    : status == 403 ? Code::kPermissionDenied
                                    : Code::kInvalidArgument,
                    parser_->reason());
  parser_.reset();
  keep_alive_ = false;
  std::string().swap(in_);
  Move(State::kWaiting);
  HttpResponse response = ErrorResponse(error);
  response.status = status;
  SendResponse(std::move(response));
}

// ---- answering

bool Connection::KeepAlive() const { return keep_alive_ && !io_->dispatcher->draining(); }

void Connection::Respond(std::uint64_t serial, HttpResponse response, std::string more) {
  if (state_ == State::kWaiting && serial == serial_) {
    more_head_ = std::move(more);
    SendResponse(std::move(response));
  }
}

void Connection::SendResponse(HttpResponse response) {
  Move(State::kWriting);
  io_->metrics->CountResponse(response.status);
  LogAccess(response.status);
  keep_alive_ = KeepAlive();
  const bool no_body = request_.method == "HEAD" || response.status == 204;
  const long size = response.file != nullptr ? static_cast<long>(response.file->bytes)
                                             : static_cast<long>(response.body.size());
  std::string bytes = ResponseHead(response, request_, size, keep_alive_, more_head_);
  if (!no_body && response.file == nullptr) {
    bytes += response.body;
  } else if (!no_body) {
    file_ = std::move(response.file);
    file_at_ = 0;
  }
  if (!Send(bytes) || !unsent_.empty()) {
    return;
  }
  file_ == nullptr ? EndResponse() : SendFile();
}

/// Reads from the file what the socket takes; memory holds one piece at a time.
void Connection::SendFile() {
  std::string piece;
  for (int i = 0; i < kFilePiecesPerTurn && file_at_ < file_->bytes; ++i) {
    piece.resize(
        static_cast<std::size_t>(std::min<std::int64_t>(kFilePieceBytes, file_->bytes - file_at_)));
    const ssize_t n = pread(file_->fd.get(), piece.data(), piece.size(), file_at_);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {  // the length is announced already: only the connection's end can tell
      log::Failure("api", "an answer's file ends early id={}", request_.request_id);
      return Close(false);
    }
    file_at_ += n;
    progress_ms_ = NowMs();
    if (!Send(std::string_view(piece).substr(0, static_cast<std::size_t>(n))) || !unsent_.empty()) {
      return;  // OnWritable goes on
    }
  }
  if (file_at_ < file_->bytes) {
    return WaitWritable();  // other connections have their turn
  }
  EndResponse();
}

void Connection::LogAccess(int status) const {
  if (!io_->options.access_log || request_.path == "/health" || request_.path == "/livez" ||
      request_.path == "/readyz" || request_.path == "/ping" || request_.path == "/metrics") {
    return;
  }
  log::Info("api",
            "{} {} {} {:.1f}ms id={}{}{}",
            request_.method.empty() ? "-" : request_.method,
            request_.path.empty() ? "-" : std::string_view(request_.path).substr(0, 80),
            status,
            static_cast<double>(NowNs() - request_ns_) * 1e-6,
            request_.request_id,
            request_.traceparent.empty() ? "" : " traceparent=",
            request_.traceparent);
}

bool Connection::Send(std::string_view bytes) {
  if (!unsent_.empty()) {
    unsent_.Append(bytes);
    return true;
  }
  while (!bytes.empty()) {
    const ssize_t n = Transmit(bytes);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
      continue;
    }
    if (errno == EINTR) {
      continue;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      Close(true);
      return false;
    }
    unsent_.Append(bytes);
    progress_ms_ = NowMs();
    WaitWritable();
    break;
  }
  return true;
}

void Connection::WaitWritable() {
  if (writing_) {
    return;
  }
  writing_ = true;
  socket_.async_wait(StreamSocket::wait_write,
                     [self = shared_from_this()](const boost::system::error_code& ec) {
                       self->writing_ = false;
                       if (!ec && self->state_ != State::kClosed) {
                         self->OnWritable();
                       }
                     });
}

void Connection::OnWritable() {
  if (read_wants_write_) {
    read_wants_write_ = false;
    OnReadable();
    if (state_ == State::kClosed || (unsent_.empty() && file_ == nullptr)) {
      return;
    }
  }
  if (!unsent_.empty()) {
    const ssize_t n = Transmit(unsent_.view());
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      return Close(true);
    }
    if (n > 0) {
      progress_ms_ = NowMs();
      unsent_.Drop(static_cast<std::size_t>(n));
    }
  }
  if (!unsent_.empty()) {
    return WaitWritable();
  }
  if (file_ != nullptr) {
    SendFile();
  } else if (state_ == State::kWriting) {
    EndResponse();
  } else if (state_ == State::kGenerating) {
    Flush();
  }
}

void Connection::EndResponse() {
  generation_.reset();
  file_.reset();
  head_sent_ = false;
  failure_logged_ = false;
  behind_ms_ = 0;
  if (!keep_alive_) {
    return Linger();
  }
  Move(State::kReading);
  since_ms_ = NowMs();
  if (!in_.empty()) {
    Parse();
  }
  WaitReadable();
}

/// The answer is out: say so, and wait for the client to close, lest a reset destroys what it has
/// not read yet.
void Connection::Linger() {
  Move(State::kLingering);
  since_ms_ = NowMs();
  body_bytes_ = 0;
  if (tls_ != nullptr) {
    tls_->Shutdown();
  }
  shutdown(socket_.native_handle(), SHUT_WR);
  WaitReadable();
}

// ---- ends

void Connection::Tick(std::int64_t now_ms) {
  const HttpOptions& options = io_->options;
  if (!unsent_.empty() && (now_ms - progress_ms_ > options.stall_timeout_ms ||
                           (behind_ms_ != 0 && now_ms - behind_ms_ > options.stall_timeout_ms))) {
    io_->metrics->slow_clients_cut.fetch_add(1, std::memory_order_relaxed);
    log::Warning("api",
                 "client cut: it took no bytes for {} s id={}",
                 options.stall_timeout_ms / 1000,
                 request_.request_id);
    return Close(true);
  }
  if (state_ == State::kLingering && now_ms - since_ms_ > options.linger_ms) {
    return Close(false);
  }
  if (state_ == State::kGenerating) {
    return Beat(now_ms);
  }
  if (state_ != State::kReading) {
    return;
  }
  const std::int64_t waited = now_ms - since_ms_;
  if (parser_ == nullptr) {
    if (waited > (used_ ? options.idle_timeout_ms : options.head_timeout_ms)) {
      Close(false);
    }
    return;
  }
  bool late = waited > options.head_timeout_ms;
  if (parser_->head_done()) {
    const std::int64_t over = now_ms - body_since_ms_ - options.body_grace_ms;
    // One that holds a place keeps others out of it.
    const std::int64_t rate =
        parser_->has_upload_place() ? options.min_upload_bytes_per_s : options.min_body_bytes_per_s;
    late = over > 0 && static_cast<std::int64_t>(body_bytes_) * 1000 < over * rate;
  }
  if (late) {
    request_ = parser_->Partial();
    request_ns_ = NowNs();
    if (request_.request_id.empty()) {
      request_.request_id = NewRequestId();
    }
    more_head_.clear();
    parser_.reset();
    keep_alive_ = false;
    Move(State::kWaiting);
    HttpResponse response = ErrorResponse(DeadlineExceeded("the request did not arrive in time"));
    response.status = 408;
    SendResponse(std::move(response));
  }
}

void Connection::Close(bool client_left) {
  if (state_ == State::kClosed) {
    return;
  }
  const State was = state_;
  Move(State::kClosed);
  if (was == State::kGenerating || was == State::kWaiting) {
    if (client_left) {
      io_->metrics->clients_left.fetch_add(1, std::memory_order_relaxed);
    }
    if (was == State::kGenerating) {
      FinishGeneration(client_left);
    }
    request_.path = request_.path.empty() ? "-" : request_.path;
    LogAccess(499);
  }
  generation_.reset();
  parser_.reset();
  file_.reset();
  if (tls_ != nullptr) {
    tls_->Shutdown();
  }
  boost::system::error_code ignored;  // nothing is left to be done about a close that fails
  socket_.close(ignored);
  io_->metrics->connections_open.fetch_sub(1, std::memory_order_relaxed);
  io_->connections.erase(id_);
}

}  // namespace inferd::api
