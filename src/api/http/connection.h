// SPDX-License-Identifier: Apache-2.0
// One client connection: reads requests in order, sends answers and streams. Private to the I/O
// thread; the only header of this room that shows Asio.
#pragma once

#include "api/core/event_ring.h"
#include "api/core/generation.h"
#include "api/http/http_message.h"
#include "api/http/http_options.h"
#include "api/http/http_parser.h"
#include "api/http/io_thread.h"
#include "api/http/tls.h"
#include "api/http/unsent_bytes.h"

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace inferd::api {

class Connection;

using StreamSocket = boost::asio::generic::stream_protocol::socket;  // TCP or Unix

/// What connections share on their thread.
struct IoState {
  struct Stream {
    std::uint64_t generation = 0;  // counts uses of the slot
    std::weak_ptr<Connection> connection;
    std::size_t prompt = 0;
    bool open = false;
  };

  IoThread* thread = nullptr;
  std::uint32_t index = 0;
  HttpOptions options;
  BodyLimits body_limits;
  Dispatcher* dispatcher = nullptr;
  leader::InferenceService* service = nullptr;
  Metrics* metrics = nullptr;
  EventInbox inbox;
  std::unordered_map<std::uint64_t, std::shared_ptr<Connection>> connections;
  std::vector<Stream> streams;
  std::vector<std::uint32_t> free_streams;
  std::vector<std::shared_ptr<Connection>> dirty;  // to be flushed
  std::string scratch;                             // wire bytes being made
  std::vector<char> read_buffer;

  leader::StreamId OpenStream(const std::shared_ptr<Connection>& connection, std::size_t prompt);
  void CloseStream(leader::StreamId id);
  Stream* FindStream(leader::StreamId id);
};

/// States and what moves them:
///   reading    -> waiting (request complete) | writing (malformed) | closed (time-out, client
///   left) waiting    -> generating (Start) | writing (Respond) generating -> writing (answer
///   complete, or failed before the first byte) writing    -> reading (all sent, keep-alive) |
///   lingering (all sent, close) lingering  -> closed (end of input, time-out)
/// The client's leaving closes from any state and cancels what runs.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(IoState* io, StreamSocket socket, std::uint64_t id);

  void Begin();
  void Respond(std::uint64_t serial, HttpResponse response, std::string more);
  void Start(std::uint64_t serial, std::unique_ptr<Generation> generation, std::string more);
  void Abort(std::uint64_t serial);
  void OnEvent(std::size_t prompt, leader::OutputEvent event, std::int64_t now_ns);
  void OnLost();
  /// Renders and sends what is pending, unless the socket is behind.
  void Flush();
  void Tick(std::int64_t now_ms);
  void Close(bool client_left);

  std::uint64_t id() const { return id_; }
  bool queued = false;  // in IoState::dirty

 private:
  enum class State : std::uint8_t {
    kReading,
    kWaiting,
    kGenerating,
    kWriting,
    kLingering,
    kClosed
  };

  void Move(State to);
  void WaitReadable();
  void WaitWritable();
  void OnReadable();
  void OnWritable();
  void Parse();
  void Refuse();
  void SendResponse(HttpResponse response);
  bool Send(std::string_view bytes);
  void SendFile();
  ssize_t Receive(char* to, std::size_t size);
  ssize_t Transmit(std::string_view bytes);
  void AppendStreamHead(std::string* out);
  void Beat(std::int64_t now_ms);
  void SendPending();
  void FinishGeneration(bool client_left);
  void EndResponse();
  void Linger();
  void MarkDirty();
  void LogAccess(int status) const;
  bool KeepAlive() const;

  IoState* io_;
  StreamSocket socket_;
  std::unique_ptr<TlsSession> tls_;  // null: plain
  const std::uint64_t id_;
  State state_ = State::kReading;
  std::uint64_t serial_ = 0;  // of the current request
  HttpRequest request_;       // the current one, without body
  std::string more_head_;     // header lines of its answer, from the dispatcher
  std::int64_t request_ns_ = 0;
  std::unique_ptr<HttpParser> parser_;
  std::string in_;  // received, not parsed
  UnsentBytes unsent_;
  std::shared_ptr<const FileBody> file_;  // what is left of the answer, behind unsent_
  std::int64_t file_at_ = 0;
  std::unique_ptr<Generation> generation_;
  std::vector<leader::StreamId> streams_;
  std::size_t body_bytes_ = 0;
  std::int64_t since_ms_ = 0;       // start of the wait that state_ is in
  std::int64_t body_since_ms_ = 0;  // when the body began
  std::int64_t progress_ms_ = 0;    // when the client last took bytes
  std::int64_t behind_ms_ =
      0;  // since when it is behind by more than soft_backlog_bytes; 0: it is not
  bool reading_ = false, writing_ = false;  // a wait is outstanding
  bool parsing_ = false;
  bool keep_alive_ = true;
  bool head_sent_ = false;
  bool spoke_ = false;               // the stream got bytes since the last tick
  std::int64_t quiet_since_ms_ = 0;  // of a stream
  bool read_wants_write_ = false;    // TLS: reading goes on when the socket takes bytes
  bool failure_logged_ = false;
  bool used_ = false;  // had a request before
};

}  // namespace inferd::api
